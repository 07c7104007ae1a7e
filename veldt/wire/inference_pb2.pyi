# SPDX-License-Identifier: Apache-2.0
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Open(_message.Message):
    __slots__ = ("actor", "incarnation", "format")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    actor: int
    incarnation: int
    format: bytes
    def __init__(self, actor: _Optional[int] = ..., incarnation: _Optional[int] = ..., format: _Optional[bytes] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("sequence", "group", "data")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    group: int
    data: bytes
    def __init__(self, sequence: _Optional[int] = ..., group: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("open", "row")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    open: Open
    row: Row
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., row: _Optional[_Union[Row, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("format",)
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    format: bytes
    def __init__(self, format: _Optional[bytes] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("opened", "answer")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    answer: Row
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., answer: _Optional[_Union[Row, _Mapping]] = ...) -> None: ...
