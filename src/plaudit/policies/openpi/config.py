"""Where the server is, and what it wants to be told."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from plaudit.config import Config
from plaudit.trust import KeyVariable, ServerUrl

if TYPE_CHECKING:
    from plaudit.policies.openpi.policy import OpenpiPolicy


class ServerConfig(Config):
    # A name, an address, or a whole `wss://...`; where a file names another machine, --allow-host MACHINE.
    host: ServerUrl = "localhost"
    port: PositiveInt | None = 8000
    api_key_env: KeyVariable = "OPENPI_API_KEY"  # the variable that holds the key; most servers need none
    connect_s: PositiveFloat = 30.0  # to keep trying to reach the server: it loads a large model before it listens
    answer_s: PositiveFloat = 10.0  # to wait for actions; the first ones take a compilation on the server

    @property
    def url(self) -> str:
        whole = self.host if self.host.startswith(("ws://", "wss://")) else f"ws://{self.host}"
        return whole if self.port is None else f"{whole}:{self.port}"


class OpenpiConfig(Config):
    type: Literal["openpi", "openpi_policy"] = "openpi"
    openpi_model: ServerConfig
    action_dim: PositiveInt  # of the robot; of longer actions the rest is padding, and is left out
    horizon: PositiveInt | None = None  # actions of a chunk; of a longer chunk the rest is left out. None: as they come
    # How the server names things, which is a matter of the checkpoint; these are those of DROID and LIBERO.
    image_keys: dict[str, str] = Field(default_factory=dict)  # camera -> key, like {front: observation/image}
    state_key: str | None = "observation/state"  # None: it is not sent
    prompt_key: str | None = "prompt"  # None: likewise
    prompt: str = ""  # the instruction, in words
    action_key: str = "actions"
    # (H, W) that images are shrunk to before they are sent, with black bars where the shape differs; None: as they are.
    image_size: tuple[PositiveInt, PositiveInt] | None = (224, 224)

    def build(self) -> "OpenpiPolicy":
        from plaudit.policies.openpi.policy import OpenpiPolicy

        return OpenpiPolicy(self)
