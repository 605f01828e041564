"""The recorder of a run, as the training process sees it: started, kept alive, waited for at the end."""

from __future__ import annotations

from xptrain.session.readable import say
from xptrain.tracking import recorder
from xptrain.tracking.folder import RunFolder

_PATIENCE_S = 15.0


class Delivery:
    """Keeps a recorder beside this process.

    Args:
        folder: The run.
        uri: Complete tracking URI, passwords included.
        is_on: False in a replay, of which the tracking store must not hear.
    """

    def __init__(self, folder: RunFolder, uri: str, *, is_on: bool = True) -> None:
        self._folder = folder
        self._uri = uri
        self._is_on = is_on

    def start(self) -> None:
        """Start the recorder.

        Raises:
            TrackerError: If it cannot be started.
        """
        if self._is_on:
            recorder.spawn(self._folder, self._uri)

    def keep(self) -> None:
        """Start the recorder again if it died; training goes on either way."""
        if self._is_on:
            recorder.ensure(self._folder, self._uri)

    def wait(self) -> None:
        """Give the recorder a moment to deliver the end of the journal, and say when that was too short."""
        if not self._is_on:
            return
        self.keep()
        if not self._folder.wait_delivered(self._folder.journal.stat().st_size, _PATIENCE_S):
            say(
                f"run {self._folder.key}: the tracking store does not have everything yet; the recorder goes "
                "on, and `xptrain sync` delivers what is left"
            )
