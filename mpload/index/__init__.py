"""The index: a text with one line per sample, and a sidecar that gives direct access to any line.

```
columns      column types and the cells that they hold: path, span, lmdb, row, int, float, str
cells        reads the cells of a line by the types of their columns
dialects     how the cells of a line are separated, escapes, and Header
plain_lists  infers the layout of a plain list from its first lines
text         the text format: header and lines, of indexes and plain lists
label_lines  the lines of YOLO's label files, which are cells or files of an index
scan         one fast pass over a text for the line offsets, the labels and a digest
sidecar      finds, checks and publishes the sidecar, an Arrow file with the results of a scan
sidecar_metadata what it says of itself, and the checksum of that
sidecar_writing  writes it; with pyarrow
arrow_metadata   reads the metadata of an Arrow file; without pyarrow
settling     waits until the modification time of a text will show any further change
trusted      which files beside a text are trusted, where other users may write
cache_folder where mpload's files are kept that cannot be beside a text
derived      where files derived from a text are kept, and the lock of the process that makes them
open_file    opens a text, and reads files by position
lookup       reads the columns of a sidecar by position, without pyarrow
record       Record: one row
lines        Lines: the lines of many samples in one buffer, with their cells as arrays
_lines       the native module for lines (C, optional): its Python module
_line_reads  finds lines through the sidecar and reads many with few system calls (C)
_line_cells  cuts lines into cells, and parses integers and spans (C)
index        Index: records and labels
mixture      Mixture: several indexes with weights, as the user gives them
mixture_index  MixtureIndex: the indexes of a mixture as one index
mixed_lines  MixedLines: lines of several indexes, as if they were those of one
copying      copies an index to a local disk, once per machine and version
copy_sources where it is copied from: a URL, or a slow file system
parts_text   the text that lists the parts of an index
parts_table  its sidecar: where the lines of each part are
parts_index  PartsIndex: the parts as one index, opened when they are needed
parts_columns  their columns as one column
parts_opening  opens and compares the parts of a list
parts        what any index consists of: its parts and files
line_reader  finds and reads lines without the native module
opening      open_index: opens the index at a path
growth       recognises an index in one to which lines were appended
blocks       consecutive samples with their columns as arrays, for passes over a whole index
texts        texts as Arrow arrays
where        conditions on the columns, parsed and never run as Python
exact        compares integers with floats exactly
selecting    Index.select: writes selected lines to a new index
weighting    Balanced and Weighted: orders with replacement
draws        their order, and the table in a file from which it draws; without pyarrow
class_batches  PKBatches: batches of P classes with K samples each
class_order  their order, over a table of the rows of each class; without pyarrow
curriculum   Curriculum: samples in the order of a number
sorted_order its order, over a table of the sorted rows; without pyarrow
sorted_rows  sorts rows by a number, in constant memory
tables       finds or makes a table, and reads the numbers that it is made of
table_files  the files of tables; without pyarrow
bucketing    Buckets: groups of samples that are alike
edges        where one bucket ends and the next one begins
bucket_table their order, and the table in a file that has the rows of each bucket; without pyarrow
publishing   new files get their names when they are complete
unfinished   unfinished files, and how those of killed processes are deleted
```

`mpload.ingest` builds indexes. This module imports nothing, so that a worker can unpickle an `Index` without pyarrow.
"""
