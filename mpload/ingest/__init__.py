"""Builds an index from folders, lists, shards, tables or buckets.

Turning a source into rows:

```
sources         determines the kind of a source, and opens it
folders         class folders and flat folders, in the order of ImageFolder
class_folders   refuses subfolders that are no classes, and links out of the root
folder_options  FolderOptions: which files count as images
pairs           files that belong to the images of a folder, such as masks and captions
buckets         objects below a URL, treated as a folder
cluster         Cluster: other machines that do work for this one
cluster_listing lists a bucket on other machines
coco            JSON files in the format of COCO
coco_runs       run lengths of COCO
voc             folders in the layout of Pascal VOC
yolo            folders in YOLO's layout
yolo_yaml       what such a folder says of its classes and keypoints
annotations     rows whose texts may be too long for a line
json_stream     reads a JSON file that is larger than memory
tars            tar shards, as spans
lmdbs           LMDB data files, as keys
tfrecords       TFRecord files, as spans
tables          Arrow files, as spans, and Parquet files, as rows
hdf5            HDF5 files, as spans
missing_values  refuses tables in which an image or a number is missing, or a number is too large
table_layout    what the columns of a table become
table_cells     values of a table as cells of an index
lists           plain lists, CSV files and existing indexes
rows            Rows, the result of opening a source: columns, root, cells, and a count of what was left out
web_names       warns of names that a web server would read in another way
grouping        groups the members of a shard into samples
signatures      recognises image files by their first bytes
unmatched       counts files that no other file has the name of, such as labels without an image
sorting         sorts more names than fit in memory
```

Turning rows into an index:

```
build        build_index: writes a text and its sidecar from a source
class_names  numbers the classes that a column names
appending    append_to_index: adds what is new in a source to its index
merge        merge_indexes: several indexes into one
parts        list_parts: several indexes as the parts of one
splitting    assigns samples to the parts of a split
writing      writes the rows of a source to index texts
image_sizes  measures the size of each sample and adds it to the sidecar
pixel_sizes  adds the width and height of each image to the rows
checking     finds faults in an index and its files
threads      runs work that waits for disks in several threads
```
"""
