"""The training process: datasets and loaders.

What users create:

```
dataset  MPDataset: an index as an iterable dataset
loader   MPLoader: loads the batches of a dataset in worker processes
instead  what to use instead of the DataLoader attributes that an MPLoader lacks
```

Where the batches come from:

```
source        the protocol of a source, and the choice of the source for a dataset
index_run     IndexRun: how an MPDataset reads its index, and the position of the run
index_runs    IndexRuns: that run, and the one over the shorter index with which an earlier epoch began
run_choices   RunChoices: the arguments of an MPDataset, which make a run of any index
agreement     how many samples of a growing index all ranks have
mixing        opens the indexes of a mixture, and turns its weights into orders
orders        the order of the samples and the length of epochs, as the arguments say
index_source  IndexSource: batches of an MPDataset
map_options   MapOptions: an MPLoader's arguments for map-style datasets
stream_source  StreamSource: batches of an iterable dataset
changes       notices changes to a dataset's attributes
map_run       how a run reads a map-style dataset, and the position of the run
samplers      what the user's samplers need to be told, and the state of their generators
sampler_shares  SamplerShare: how many samples a batch of a sampler stands for, on how many ranks
map_source    MapSource: batches of a map-style dataset, written sample by sample into slots
learned_form  LearnedForm: what such samples look like, and the layout of slots that fits them
default_batches  batches as default_collate makes them
batch_source  BatchSource: batches of a map-style dataset, each made whole by one worker
sample_errors  errors of samples: what they mean for an iteration, and the user's own classes
outages       warnings of outages, which the workers of a loader notice
planned       the tasks of an epoch whose batches are planned by arithmetic
forms         how the columns of samples are stored in a slot
collate       Pad, Flat: how values of different shapes become one tensor
presenting    converts batches to what an MPDataset yields
leaf_tensors  batches of samples made of nested containers
tensors       converts the values of a sample or batch to tensors
described     what a loader tells about itself
pinned        batches in page-locked memory
epochs        the current and next epoch, shared by all processes that read a dataset
epoch_iterator  one iteration of an MPDataset in one process, and its position
iterations    one iteration of a loader
reweighting   what it does only for mixtures: changes of weights in the middle of an epoch
source_counts  samples that were delivered and that failed, by source of a mixture
frameworks    support for Lightning, Accelerate and others
```

What keeps the workers busy within the memory budget:

```
engine         the workers and slots of a loader
row_groups     the memory that the row groups of Parquet files need
scaling        decides how many workers there are
scaler         measures what that decision needs
governor       makes fewer batches ahead while memory is short
machine_share  this rank's share of the machine
advice         warnings that explain what slows a loader down
```
"""
