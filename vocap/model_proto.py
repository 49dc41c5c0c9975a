"""The messages of a SentencePiece model file, with the fields that this project reads or sets.

The classes of the sentencepiece package are generated for one release of protobuf and refuse older
runtimes. But Apache Beam and much of Google Cloud require protobuf 6. The import makes the classes
here from the table below, for any runtime. They keep the value of a field that is not listed.
Numbers and defaults: sentencepiece_model.proto.
"""

from typing import Any

import sentencepiece as spm
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_FIELDS = {
    "ModelProto": (
        "1 repeated .ModelProto.SentencePiece pieces",
        "2 optional .TrainerSpec trainer_spec",
        "3 optional .NormalizerSpec normalizer_spec",
        "5 optional .NormalizerSpec denormalizer_spec",
    ),
    "ModelProto.SentencePiece": (
        "1 optional string piece",
        "2 optional float score",
        "3 optional .ModelProto.SentencePiece.Type type NORMAL",
    ),
    "TrainerSpec": (
        "3 optional .TrainerSpec.ModelType model_type UNIGRAM",
        "4 optional int32 vocab_size 8000",
        "24 optional bool treat_whitespace_as_suffix false",
        "30 repeated string control_symbols",
        "31 repeated string user_defined_symbols",
        "35 optional bool byte_fallback false",
        "40 optional int32 unk_id 0",
        "41 optional int32 bos_id 1",
        "42 optional int32 eos_id 2",
        "43 optional int32 pad_id -1",
        "45 optional string unk_piece <unk>",
        "46 optional string bos_piece <s>",
        "47 optional string eos_piece </s>",
        "48 optional string pad_piece <pad>",
    ),
    "NormalizerSpec": (
        "1 optional string name",
        "2 optional bytes precompiled_charsmap",
        "3 optional bool add_dummy_prefix true",
        "4 optional bool remove_extra_whitespaces true",
        "5 optional bool escape_whitespaces true",
        "6 optional string normalization_rule_tsv",
    ),
}
_ENUMS = {
    "TrainerSpec.ModelType": {"UNIGRAM": 1, "BPE": 2, "WORD": 3, "CHAR": 4},
    "ModelProto.SentencePiece.Type": {
        "NORMAL": 1, "UNKNOWN": 2, "CONTROL": 3, "USER_DEFINED": 4, "UNUSED": 5, "BYTE": 6,
    },
}  # fmt: skip


def _classes() -> tuple[Any, ...]:
    """Make the classes of the outermost messages, in the order of `_FIELDS`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="vocap/sentencepiece_model.proto", package="sentencepiece", syntax="proto2"
    )
    messages: dict[str, Any] = {}
    for name, rows in _FIELDS.items():
        outer, _, own = name.rpartition(".")
        message = messages[outer].nested_type.add() if outer else file.message_type.add()
        message.name = own
        # As in the original, so that other tools can add fields.
        message.extension_range.add(start=200, end=1 << 29)
        messages[name] = message
        for row in rows:
            number, label, kind, field, *default = row.split(" ")
            spec = message.field.add(name=field, number=int(number))
            spec.label = spec.Label.Value(f"LABEL_{label.upper()}")
            if kind.startswith("."):
                spec.type_name = f".sentencepiece{kind}"
                spec.type = spec.TYPE_ENUM if kind[1:] in _ENUMS else spec.TYPE_MESSAGE
            else:
                spec.type = spec.Type.Value(f"TYPE_{kind.upper()}")
            if default:
                (spec.default_value,) = default
    for name, values in _ENUMS.items():
        outer, _, own = name.rpartition(".")
        enum = messages[outer].enum_type.add(name=own)
        for value, of_value in values.items():
            enum.value.add(name=value, number=of_value)
    # A pool of its own: the default one refuses a second description of the same messages.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"sentencepiece.{message.name}"))
        for message in file.message_type
    )


ModelProto, TrainerSpec, NormalizerSpec = _classes()


def plain_processor(proto: Message) -> spm.SentencePieceProcessor:
    """Return the processor of a copy of a model that takes text as it is, blanks included."""
    plain = ModelProto()
    plain.CopyFrom(proto)
    spec = plain.normalizer_spec
    spec.Clear()
    spec.name, spec.add_dummy_prefix, spec.remove_extra_whitespaces = "identity", False, False
    return spm.SentencePieceProcessor(model_proto=plain.SerializeToString())
