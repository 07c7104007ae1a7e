# SPDX-License-Identifier: Apache-2.0
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("protocol", "environments", "observation_space", "action_space", "action_masks")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SPACE_FIELD_NUMBER: _ClassVar[int]
    ACTION_SPACE_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASKS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    environments: int
    observation_space: str
    action_space: str
    action_masks: bool
    def __init__(self, protocol: _Optional[int] = ..., environments: _Optional[int] = ..., observation_space: _Optional[str] = ..., action_space: _Optional[str] = ..., action_masks: _Optional[bool] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("name", "path", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: _containers.RepeatedScalarFieldContainer[str]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("observation", "action", "action_mask_size", "learns", "reads_reward", "observation_space", "action_space")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASK_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNS_FIELD_NUMBER: _ClassVar[int]
    READS_REWARD_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SPACE_FIELD_NUMBER: _ClassVar[int]
    ACTION_SPACE_FIELD_NUMBER: _ClassVar[int]
    observation: _containers.RepeatedCompositeFieldContainer[Entry]
    action: Entry
    action_mask_size: int
    learns: bool
    reads_reward: bool
    observation_space: str
    action_space: str
    def __init__(self, observation: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., action: _Optional[_Union[Entry, _Mapping]] = ..., action_mask_size: _Optional[int] = ..., learns: _Optional[bool] = ..., reads_reward: _Optional[bool] = ..., observation_space: _Optional[str] = ..., action_space: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("observation", "action_mask", "reward", "ended", "final_observation", "leaves")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASK_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FINAL_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    observation: _containers.RepeatedScalarFieldContainer[bytes]
    action_mask: bytes
    reward: _containers.RepeatedScalarFieldContainer[float]
    ended: bytes
    final_observation: _containers.RepeatedScalarFieldContainer[bytes]
    leaves: bool
    def __init__(self, observation: _Optional[_Iterable[bytes]] = ..., action_mask: _Optional[bytes] = ..., reward: _Optional[_Iterable[float]] = ..., ended: _Optional[bytes] = ..., final_observation: _Optional[_Iterable[bytes]] = ..., leaves: _Optional[bool] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("hello", "step")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: Step
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("action",)
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: bytes
    def __init__(self, action: _Optional[bytes] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("welcome", "actions")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    actions: Actions
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., actions: _Optional[_Union[Actions, _Mapping]] = ...) -> None: ...
