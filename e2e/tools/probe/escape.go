package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// upwards leads from any directory to the root.
const upwards = "/../../../../../../../../../../../../../../../../../../../../../../../.."

// escape makes those attacks alone that lead out of the container.
func escape(_ context.Context, a *assault) (siege, error) {
	s := siege{Report: report{}}
	err := onThread(func() error {
		a.escape(s.Report)
		return nil
	})
	return s, err
}

// escape tries to reach the path outside by everything that may lead out of the
// container.
func (a *assault) escape(r report) {
	reach := func(path string) error { return withFile(path, unix.O_RDONLY, nothing) }
	r.add("escape-path", a.Outside, reach(a.Outside))
	r.add("escape-link", a.Outside, a.throughLink(reach))
	all, _ := processes("/proc") // there is at least this one
	for _, pid := range all {
		for _, dir := range []string{"root", "cwd"} {
			path := fmt.Sprintf("/proc/%d/%s%s%s", pid, dir, upwards, a.Outside)
			r.add("escape-process-"+dir, path, reach(path))
		}
	}
	for _, p := range a.Places {
		for _, w := range a.ways(p.Dir) {
			dir, leave, err := w.enter(p.Dir)
			if err != nil {
				continue
			}
			r.add("escape-upwards", w.name+" to "+p.Dir, reach(dir+upwards+a.Outside))
			leave()
		}
	}
	r.add("escape-chroot", a.Outside, onThread(func() error { return a.leaveChroot(reach) }))
}

func (a *assault) throughLink(reach func(string) error) error {
	link := filepath.Join(a.Scratch, "outside")
	if err := os.Symlink(filepath.Dir(a.Outside), link); err != nil {
		return err
	}
	defer os.Remove(link)
	return reach(link + "/" + filepath.Base(a.Outside))
}

// leaveChroot goes up from a directory that is above the root.
func (a *assault) leaveChroot(reach func(string) error) error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Chroot(a.Scratch); err != nil {
		return err
	}
	if err := unix.Fchdir(fd); err != nil {
		return err
	}
	if err := unix.Chdir(strings.TrimPrefix(upwards, "/")); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return reach(a.Outside)
}
