"""The command line: `mpload`, with one module for each command.

```
main      the app; reports each error as one line on stderr and an exit code
commands  the list of commands; imports a command's module when it is needed
index     builds an index
inspect   shows an index: facts and histogram, `--check`, `--grid`
select    writes an index of some of the samples of another
merge     concatenates indexes
pack      writes samples into shards
plan      judges a job by assumed figures
doctor    measures what limits a job
serve     makes samples for the loaders of other machines
monitor   measures the memory of a command
top       shows the loaders of a running job
demo      makes photos, indexes them, reads three epochs, and checks the result
cache     shows, verifies or deletes the caches in a folder
bench     benchmarks image decoders, and the memory of lists of samples
```

Modules that the commands share:

```
clusters      the option --on: which machines do the work
loading       opens the index and imports the decoder and transform named on the command line
summary       the facts about an index, gathered in constant memory
appended      what `mpload index --append` has found and done
findings      the results of a check, as JSON lines
grid          the contact sheet
overlays      draws masks and objects over the photos of a contact sheet
lettering     text in the contact sheet
monitor_plot  memory over time, grouped by the role of each process
figures       matplotlib figures of one style: titles state the finding, labels stand at the ends of lines
pages         self-contained HTML pages from the templates in this folder, in light and dark mode
photos        generates the demo's photographs
outputs       checks that output files can be written, before the work starts
terminal      the progress bar
endings       ends a command cleanly on SIGTERM and SIGHUP
streams       standard streams that are closed, and their encoding
verdicts      what limits a job: the table of its stages, and the remedies
reports       `--json`: reports for scripts, on stdout
```

Exit codes: 0 success; 1 findings, or a failure reported in one line on stderr; 2 wrong usage; 130 interrupted.
A command imports torch only after it has checked its arguments.
"""
