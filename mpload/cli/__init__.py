"""The command line: `mpload`, and a module for each of its commands.

```
main      the app, and what becomes of errors: one line on stderr and an exit code
index     makes an index
inspect   shows one: facts and histogram, `--check`, `--grid`
merge     puts indexes together
pack      writes samples into shards
plan      what a job needs, by arithmetic
doctor    what limits a job, measured
tune      which numbers make it fastest
monitor   what memory a command takes
top       what the loaders of a running job do
demo      photos, index, three epochs through worker processes, checked and measured
cache     what a cache's folder holds
bench     decoders, and the memory that lists take
```

What they share:

```
loading       the index, decoder and transform that a command is given
summary       what there is to tell about an index, in constant memory
findings      what a check finds, as JSON lines
grid          the contact sheet
lettering     text in the contact sheet
monitor_plot  memory over time, by what processes are for
photos        the demo's photographs
outputs       whether a file can be written, asked before the work
terminal      the progress bar
reports       `--json`: what a script reads on stdout
```

Exit codes: 0 fine; 1 findings, or a failure told in one line on stderr; 2 wrong usage; 130 interrupted.
Nothing here imports torch before a command has looked at its arguments.
"""
