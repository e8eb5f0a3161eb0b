package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
)

const (
	// attackTime is how long the attacks on files go on at least.
	attackTime = 5 * time.Second
	// maxSucceeded is how many successes a siege names.
	maxSucceeded = 20
	// upwards leads from any directory to the root.
	upwards = "/../../../../../../../../../../../../../../../../../../../../../../../.."
)

// siege is what an assault came to, in the making.
type siege struct{ answers.Siege }

func newSiege() *siege {
	return &siege{answers.Siege{Rehearsal: answers.Report{}, Report: answers.Report{}}}
}

// add counts a try. where is what was changed or reached without an error.
func (s *siege) add(attack, where string, err error) {
	count(s.Report, attack, err)
	if err == nil && len(s.Succeeded) < maxSucceeded {
		s.Succeeded = append(s.Succeeded, attack+": "+where)
	}
}

func count(r answers.Report, attack string, err error) {
	answer := "ok"
	var errno syscall.Errno
	if errors.As(err, &errno) {
		answer = unix.ErrnoName(errno)
	} else if err != nil {
		answer = err.Error()
	}
	if r[attack] == nil {
		r[attack] = map[string]int{}
	}
	r[attack][answer]++
}

// blow is one kind of attack.
type blow struct {
	name string
	// ofDir says that it changes the directory, not the file.
	ofDir bool
	// strike returns nil if it could change something.
	strike func(dir, file string) error
}

func blows() []blow {
	return []blow{
		{"open-write", false, func(_, file string) error { return withFile(file, unix.O_WRONLY, writeByte) }},
		{"reopen-path-descriptor", false, func(_, file string) error {
			return withFile(file, unix.O_PATH, func(fd int) error {
				return withFile(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, writeByte)
			})
		}},
		{"truncate", false, func(_, file string) error { return unix.Truncate(file, 1) }},
		{"chmod", false, func(_, file string) error { return unix.Chmod(file, 0o666) }},
		{"create", true, func(dir, _ string) error {
			return withFile(dir+"/hostile", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, nothing)
		}},
		{"create-nameless", true, func(dir, _ string) error { return withFile(dir, unix.O_TMPFILE|unix.O_RDWR, nothing) }},
		{"rename", true, func(dir, file string) error { return unix.Rename(file, dir+"/hostile") }},
		{"link", true, func(dir, file string) error {
			return unix.Linkat(unix.AT_FDCWD, file, unix.AT_FDCWD, dir+"/hostile", unix.AT_SYMLINK_FOLLOW)
		}},
		{"unlink", true, func(_, file string) error { return unix.Unlink(file) }},
		{"rewrite-current", true, func(dir, _ string) error {
			if err := unix.Symlink("/proc/self/root", dir+"/..data_tmp"); err != nil {
				return err
			}
			return unix.Rename(dir+"/..data_tmp", dir+"/..data")
		}},
	}
}

// attack does all blows to the places in each way, and tries to leave the container, again and again, until there were enough tries that
// had something to attack and the time is up. The rehearsal is on a file that may be changed, made anew for each blow.
func attack(ctx context.Context, a *answers.Assault) (*siege, error) {
	s, own := newSiege(), filepath.Join(a.Scratch, "rehearsal")
	for _, b := range blows() {
		if err := errors.Join(os.RemoveAll(own), os.Mkdir(own, 0o755), os.WriteFile(own+"/key", []byte("text"), 0o600)); err != nil {
			return s, err
		}
		count(s.Rehearsal, b.name, b.strike(own, own+"/key"))
	}
	for begin, tries := time.Now(), 0; ctx.Err() == nil && (tries < a.Tries || time.Since(begin) < attackTime); {
		for _, p := range a.Places {
			tries += s.attackPlace(p)
		}
		s.escape(a)
	}
	return s, ctx.Err()
}

// attackPlace returns how many tries had something to attack: a generation may go meanwhile.
func (s *siege) attackPlace(p answers.Place) (tries int) {
	paths, leave := ways(p.Dir)
	defer leave()
	for _, dir := range paths {
		for _, b := range blows() {
			if b.ofDir && p.Alone {
				continue
			}
			err := b.strike(dir, dir+"/"+p.Name)
			s.add(b.name, dir+"/"+p.Name, err)
			if !errors.Is(err, unix.ENOENT) {
				tries++
			}
		}
	}
	return tries
}

// ways returns paths of a directory, good until leave is called: its own, that of a descriptor, and that through the root of another
// container's process.
func ways(dir string) (paths []string, leave func()) {
	paths, leave = []string{dir}, func() {}
	if fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		paths, leave = append(paths, fmt.Sprintf("/proc/self/fd/%d", fd)), func() { unix.Close(fd) }
	}
	own, _ := os.Readlink("/proc/self/ns/mnt")
	for _, process := range processes() {
		if namespace, err := os.Readlink(process + "/ns/mnt"); err != nil || namespace == own {
			continue
		}
		if _, err := os.Stat(process + "/root" + dir); err == nil {
			return append(paths, process+"/root"+dir), leave
		}
	}
	return paths, leave
}

// escape makes those attacks alone that lead out of the container.
func escape(_ context.Context, a *answers.Assault) (*siege, error) {
	s := newSiege()
	s.escape(a)
	return s, nil
}

// escape tries to reach the path outside by what may lead out of the container.
func (s *siege) escape(a *answers.Assault) {
	reach := func(from string) error { return withFile(from+upwards+a.Outside, unix.O_RDONLY, nothing) }
	for _, process := range processes() {
		s.add("escape-process-root", process, reach(process+"/root"))
	}
	for _, p := range a.Places {
		s.add("escape-upwards", p.Dir, reach(p.Dir))
	}
	s.add("escape-chroot", a.Outside, onThread(func() error { return leaveChroot(a.Scratch, reach) }))
}

// leaveChroot goes up from a directory that is above the root.
func leaveChroot(root string, reach func(string) error) error {
	return withFile("/", unix.O_PATH|unix.O_DIRECTORY, func(above int) error {
		if err := unix.Chroot(root); err != nil {
			return err
		}
		if err := unix.Fchdir(above); err != nil {
			return err
		}
		if err := unix.Chdir(strings.TrimPrefix(upwards, "/")); err != nil {
			return err
		}
		if err := unix.Chroot("."); err != nil {
			return err
		}
		return reach("")
	})
}

// onThread calls f on a thread with a working and a root directory of its own, which
// ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// withFile calls f with a file that it opens.
func withFile(path string, flags int, f func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o666)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func nothing(int) error { return nil }

func writeByte(fd int) error {
	_, err := unix.Write(fd, []byte("!"))
	return err
}
