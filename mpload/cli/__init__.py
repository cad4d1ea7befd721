"""The command line: `mpload index | inspect | merge | demo`.

main      the app, and what becomes of errors: one line on stderr and an exit code
index     makes an index
inspect   shows one: facts and histogram, `--check`, `--grid`
summary   what there is to tell about an index, in constant memory
grid      the contact sheet
merge     puts indexes together
demo      photos, index, three epochs through worker processes, checked and measured
photos    the demo's photographs
terminal  the progress bar

Exit codes: 0 fine; 1 findings, or a failure told in one line on stderr; 2 wrong usage; 130 interrupted.
Nothing here imports torch, but for `demo` when it runs.
"""
