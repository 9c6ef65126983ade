"""The user that a process of root's becomes, for good, and what is asked in that user's name before."""

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
    """groups: all of them, gid among them."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def become(self, kept: frozenset[Capability] = capabilities.NONE) -> None:
        """Be this user from now on, with these capabilities and no others, whatever is executed later. For a process of
        root's with one thread. UsageError where it may not."""
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
        """What a call returns, as JSON has it, in a child that has become this user. HeadraceError of the call."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._answer(call, writing)
        os.close(writing)
        with open(reading, "rb") as source:
            said = source.read(_ANSWER_BYTES_MAX)
        os.waitpid(child, 0)
        try:
            answer = json.loads(said)
        except ValueError:
            raise HeadraceError(f"user {self.name}", why="a process of that user failed") from None
        if "error" in answer:
            what, why, hint = (str(answer.get(word, "")) for word in ("what", "why", "hint"))
            raise error_classes().get(str(answer["error"]), HeadraceError)(what, why=why, hint=hint)
        return answer["result"]

    def _answer(self, call: Callable[[], Any], writing: int) -> NoReturn:
        answer: dict[str, Any] = {}
        try:
            try:
                os.setsid()  # a terminal of root's is not its own
                self.become()
                answer = {"result": call()}
            except HeadraceError as error:
                answer = {"error": error.code, "what": error.what, "why": error.why, "hint": error.hint}
            with open(writing, "wb") as out:
                out.write(json.dumps(answer).encode())
        except Exception:  # noqa: BLE001 - of a child that ends here, whatever it is
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(0)


def account_of(word: str) -> Account:
    """word: NAME or UID, and :GROUP or :GID. Without a group, all of the user's. UsageError."""
    user, colon, group = word.partition(":")
    try:
        row = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        name, uid, gid, home = row.pw_name, row.pw_uid, row.pw_gid, row.pw_dir
    except (KeyError, OverflowError) as error:
        if not user.isdecimal() or not colon or int(user) > 0x7FFFFFFF:
            hint = "name one of this host, or give UID:GID"
            raise UsageError(f"user {word}", why="there is no such user", hint=hint) from error
        name, uid, gid, home = user, int(user), 0, "/"
    if uid == 0:
        raise UsageError(f"user {word}", why="that is root", hint="name a user without rights, or none")
    groups = os.getgrouplist(name, gid)
    if colon:
        try:
            gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        except KeyError as error:
            raise UsageError(f"user {word}", why=f"there is no group {group}") from error
        groups = [gid]
    if not 0 < gid <= 0x7FFFFFFF:
        raise UsageError(f"user {word}", why="its group is root's", hint="name another: NAME:GROUP")
    return Account(name, uid, gid, tuple(sorted({gid, *groups} - {0})), home)


def account_with(uid: int) -> Account:
    """Of whom a folder belongs to; one without a name has a group of the same number."""
    try:
        return account_of(str(uid))
    except UsageError:
        return account_of(f"{uid}:{uid}")
