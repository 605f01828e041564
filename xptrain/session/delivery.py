"""The recorder of a run, as the training process sees it: started, kept alive, waited for at the end."""

from __future__ import annotations

from xptrain.session.readable import say, told
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
        """Give the recorder a moment to deliver the end of the journal, and say when that was too short.

        Raises:
            KeyboardInterrupt: Ctrl-C ended the wait; the run has ended before, and is whole.
        """
        if not self._is_on:
            return
        try:
            self.keep()
            if not self._folder.wait_delivered(self._folder.journal.stat().st_size, _PATIENCE_S):
                self._say("the tracking store does not have everything yet")
            elif self._folder.delivered.postponed:
                self._say("the artifact store does not take its files now")
        except FileNotFoundError:
            say(f"run {self._folder.key}: its folder is gone; nothing more can be delivered")
        except KeyboardInterrupt as interrupt:
            self._say("has ended; Ctrl-C ended the wait for the tracking store")
            raise told(interrupt) from None

    def _say(self, what: str) -> None:
        rest = "the recorder goes on, and `xptrain sync` delivers what is left"
        say(f"run {self._folder.key}: {what}; {rest}")
