"""What a worker does to a sample: read, decode, transform. Nothing here imports torch.

```
pipeline           Pipeline: turns a record into a sample
one_decoder        OneDecoder: all files of a sample go through the same decoder and transform
column_decoders    ColumnDecoders: each column has a decoder of its own, samples are dicts
by_source          BySource: each source of a mixture has a decoder or transform of its own
text_decoders      Text, Json
objects            reads the objects that a file lists for an image, from JSON or YOLO's text
object_check       checks them before they are trained on
block_reads        loads whole blocks of records into the page cache, and frees them
boxes              Boxes: the objects' boxes and values, which follow the crop of the image
segments           the outlines of objects, as COCO stores them, as masks
keypoints          Keypoints: points that follow the crop of the image
clips              VideoClip, AudioClip: parts of videos and audio files
clip_parts         which part of a file a clip is
video_file         finds the end of a video and the frames shown at given times
audio_file         reads parts of audio
audio_headers      finds out whether an audio file is cut short
views              Views: several crops of one image
reading            opens the storage that a record's bytes are read from
masks              refuses masks that an image decoder would destroy
mask_check         refuses them before the first epoch
transforms         the user's transforms of arrays, seeded for each sample
sample_transforms  the user's transforms of samples that are dicts
albumentations_targets  calls albumentations on whole samples
torchvision_targets     calls torchvision v2 on whole samples
object_parts       the masks and points of an image's objects, which move with it
targets            what a column's values are to transforms: images, masks, boxes, keypoints
handlers           tells what a handler of a signal has raised from failures of samples
policy             ErrorPolicy: how bad samples are handled
batch              Batch: samples stacked column by column
cache              PartialCache: a subset of the samples, kept on a fast disk or in memory
cached_reads       copies the entries of a whole chunk from the cache
row_index          RowIndex: where the rows of each JPEG begin, for faster crops
counts             names of the workers' counters
index_work         fills a slot with samples of an index
collated_work      does the same, then makes the batch of them in the slot
makers             Makers: what makes samples, for each bucket if these have shapes of their own
opencv_use         finds out whether samples need OpenCV
bucket_shapes      decodes the images of each bucket to the bucket's shape
joins              joins the arrays of a batch in a slot: padded, or end to end
bulk               makes the samples of a whole chunk with a few native calls
bulk_columns       the same for column decoders: images first, then what follows them
bulk_makers        makes one column of a chunk
bulk_boxes         makes the boxes of a chunk
bulk_views         does so where all images are views
map_work           fills a slot with samples of a map-style dataset
batch_work         makes whole batches of a map-style dataset
data_pipes         divides DataPipes among workers
stream_work        draws the batches of an iterable dataset
held_generators    finds generators that the user's objects hold, and seeds those of transforms
reached            finds the objects that a user's code refers to
seeded_albumentations   lets transforms of albumentations draw from a sample's generator
seeded_dataset     calls a map-style dataset with seeded random generators
parcel             a value of any form as bytes in shared memory
sample_form        learns the form of a map-style dataset's samples from those that were made
leaves             the values inside a sample made of nested containers
leaf_arrays        writes such samples into arrays, and reads batches back
leaf_batches       makes batches of such samples in this process
leaf_columns       writes small samples several at a time, a column of values for each leaf
column_batches     makes batches of the samples of one decoder in this process
probe              runs the user's code in a worker to learn the form of its samples
_objects           boxes of many files (C, optional): its Python module
_scan              reads lists of objects in JSON (C)
_clip              moves boxes into a crop as boxes does (C)
```
"""
