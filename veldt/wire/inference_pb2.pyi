from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message

DESCRIPTOR: _descriptor.FileDescriptor

class Open(_message.Message):
    __slots__ = ("actor", "format", "incarnation")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    actor: int
    incarnation: int
    format: bytes
    def __init__(self, actor: int | None = ..., incarnation: int | None = ..., format: bytes | None = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("data", "group", "sequence")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    group: int
    data: bytes
    def __init__(self, sequence: int | None = ..., group: int | None = ..., data: bytes | None = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("open", "row")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    open: Open
    row: Row
    def __init__(self, open: Open | _Mapping | None = ..., row: Row | _Mapping | None = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("format",)
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    format: bytes
    def __init__(self, format: bytes | None = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("data", "group", "sequence")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    group: int
    data: bytes
    def __init__(self, sequence: int | None = ..., group: int | None = ..., data: bytes | None = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("answer", "opened")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    answer: Answer
    def __init__(self, opened: Opened | _Mapping | None = ..., answer: Answer | _Mapping | None = ...) -> None: ...
