// Package supervise stops a process at any one of its file, mount and rename calls,
// whichever of its threads makes it, and kills it there.
//
// It uses seccomp's user notification: a filter that the process inherits hands each
// such system call to a Supervisor, which lets it go on or kills the process before the
// call is done. The kernel holds the calling thread meanwhile, so the count is of the
// whole process, and no call slips by.
//
// What is counted, once the Supervisor is armed:
//
//   - every call on mounts: fsopen, fsconfig, fsmount, open_tree, mount_setattr,
//     move_mount, mount, umount2;
//   - every call that makes, removes, renames or links a name, or changes a file's mode,
//     owner or times by its name;
//   - every write to a regular file, and every change of length, mode or owner through
//     the descriptor of a file or a directory, but on stdout and stderr, which are the log;
//   - every open that may write or make a file, is relative to a directory's descriptor,
//     or is below the directory that the Supervisor was made for.
//
// Asked for by name, every program that is run is counted too.
//
// Not counted are an open for reading of any other path, such as in /proc or /etc, and
// writes to sockets and pipes. They change nothing that outlives the process.
//
// It needs Linux 5.19, on amd64 or arm64, and CAP_SYS_ADMIN in its user namespace. It knows
// nothing of what the process is for.
package supervise
