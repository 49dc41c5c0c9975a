"""WMT14 English-German and English-French, with VECO's fine-tuning (Section 5).

    python finetune.py --config=configs/finetune/wmt14.py:en-de,tfds --workdir=DIR \\
        --config.init_from=CHECKPOINT

CHECKPOINT is a working directory of train.py with objective "veco", or a folder of xlm export
--part=encoder_decoder; any other encoder starts with random cross-attention. `en-fr,DATA` reads
`{train,dev,test}.{en,fr}` below DATA instead of tensorflow-datasets. There, validation and test
data are newstest2013 and newstest2014. For En-Fr the paper validates on 2012 and 2013 together and
names newstest2016 as test data.

With 24 layers of encoder and the last 6 as decoder, Table 3 has a BLEU of 31.5 for En-De and 44.4
for En-Fr (case-insensitive, tokenised) and a sacreBLEU of 30.5 and 42.0; from random parameters
28.6 and 42.8, 27.7 and 40.3. For its row of XLM-R (30.8 and 43.7, 29.9 and 41.1) give an XLM-R, and
--config.translation.decoder_from=random. We ran none of these.

Hardware: 16 V100 for En-De and 32 for En-Fr in the paper; accumulation_steps gives the same batch
on fewer.
"""

from ml_collections import ConfigDict

from configs.finetune.translation import translation


def get_config(arg: str = "en-de,tfds") -> ConfigDict:
    direction, _, data = arg.partition(",")
    config = translation("wmt14", direction, data)
    if "fr" in direction.split("-"):
        config.optimizer.learning_rate = 2e-4
        config.train.batch_tokens = 262_144
    return config
