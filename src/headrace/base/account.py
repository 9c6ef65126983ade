"""The user that a process of root becomes permanently, and calls in that user's name before."""

from __future__ import annotations

import grp
import json
import os
import pwd
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.base import capabilities
from headrace.base.capabilities import Capability
from headrace.base.errors import HeadraceError, UsageError, error_classes

_ANSWER_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the host. groups: all of the user's groups, with gid."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def become(self, kept: frozenset[Capability] = capabilities.NONE) -> None:
        """Become this user permanently, with these capabilities and no others, whatever the process executes later. The
        process must be root's and have one thread. Raises UsageError if the system refuses."""
        try:
            capabilities.limit_to(kept)
            capabilities.survive_change_of_user()
            os.setgroups(self.groups)
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
            capabilities.hold(kept)
            capabilities.forbid_new_privileges()
        except OSError as error:
            raise UsageError(
                f"user {self.name}",
                why=f"this process can't become it: {error.strerror}",
                hint="start as root, with CAP_SETUID, CAP_SETGID, and for a mount CAP_SYS_ADMIN",
            ) from error
        # a child that has rights must take no modules from a home that its user writes to
        os.environ.update(HOME=self.home, USER=self.name, LOGNAME=self.name, PYTHONNOUSERSITE="1")

    def result_of(self, call: Callable[[], Any]) -> Any:
        """Run a call in a child that has become this user, and return its result as JSON carries it. HeadraceError of
        the call."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._answer(call, writing)
        os.close(writing)
        with open(reading, "rb") as source:
            data = source.read(_ANSWER_BYTES_MAX)
        os.waitpid(child, 0)
        try:
            answer = json.loads(data)
        except ValueError:
            raise HeadraceError(f"user {self.name}", why="a process of that user failed") from None
        if "error" in answer:
            subject, why, hint = (str(answer.get(field, "")) for field in ("what", "why", "hint"))
            raise error_classes().get(str(answer["error"]), HeadraceError)(subject, why=why, hint=hint)
        return answer["result"]

    def _answer(self, call: Callable[[], Any], writing: int) -> NoReturn:
        answer: dict[str, Any] = {}
        try:
            try:
                os.setsid()  # detach from root's terminal
                self.become()
                answer = {"result": call()}
            except HeadraceError as error:
                answer = error.as_report()
            with open(writing, "wb") as out:
                out.write(json.dumps(answer).encode())
        except Exception:  # noqa: BLE001 - the child ends here in any case
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(0)


def account_of(text: str) -> Account:
    """Parse NAME or UID, optionally with :GROUP or :GID. Without a group, the account has all groups of the user.
    Raises UsageError."""
    user, colon, group = text.partition(":")
    try:
        row = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        name, uid, gid, home = row.pw_name, row.pw_uid, row.pw_gid, row.pw_dir
    except (KeyError, OverflowError) as error:
        if not user.isdecimal() or not colon or int(user) > 0x7FFFFFFF:
            hint = "name one of this host, or give UID:GID"
            raise UsageError(f"user {text}", why="there is no such user", hint=hint) from error
        name, uid, gid, home = user, int(user), 0, "/"
    if uid == 0:
        raise UsageError(f"user {text}", why="that is root", hint="name a user without rights, or none")
    groups = os.getgrouplist(name, gid)
    if colon:
        try:
            gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        except KeyError as error:
            raise UsageError(f"user {text}", why=f"there is no group {group}") from error
        groups = [gid]
    if not 0 < gid <= 0x7FFFFFFF:
        raise UsageError(f"user {text}", why="its group is root's", hint="name another: NAME:GROUP")
    return Account(name, uid, gid, tuple(sorted({gid, *groups} - {0})), home)


def account_with(uid: int) -> Account:
    """Return the account of the owner of a directory. A uid without a name gets a group of the same number."""
    try:
        return account_of(str(uid))
    except UsageError:
        return account_of(f"{uid}:{uid}")
