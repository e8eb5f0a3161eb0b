package golden_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// The prefixes of the attributes, as root and in a user namespace. They are not taken from pkg/mount, which must not change
// them.
const trusted, security = "trusted.refvol.", "security.refvol."

// entry is what a volume has at a path, below the target.
type entry struct {
	Path string `json:"path"`
	// Mode has the bits of the kernel, in octal: it says what kind of entry this is.
	Mode string `json:"mode"`
	UID  int    `json:"uid,omitempty"`
	GID  int    `json:"gid,omitempty"`
	// Link is the target of a symbolic link, and Same the path of an entry above that is the same file.
	Link string `json:"link,omitempty"`
	Same string `json:"same,omitempty"`
	// Text is what is in a file; Bytes is that of a file that is no text.
	Text       string            `json:"text,omitempty"`
	Bytes      []byte            `json:"bytes,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`

	stat unix.Stat_t
}

// look returns all that is mounted at a target.
func look(t *testing.T, target string) (all []entry) {
	t.Helper()
	seen := map[uint64]string{}
	must.Do(t, filepath.WalkDir(target, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		e := entry{}
		if e.Path, err = filepath.Rel(target, path); err == nil {
			err = unix.Lstat(path, &e.stat)
		}
		if err != nil {
			return err
		}
		e.Mode, e.UID, e.GID = fmt.Sprintf("%06o", e.stat.Mode), int(e.stat.Uid), int(e.stat.Gid)
		if e.Same = seen[e.stat.Ino]; e.Same == "" {
			seen[e.stat.Ino] = e.Path
		}
		err = e.read(path)
		all = append(all, e)
		return err
	}))
	return all
}

// read takes in the content and the attributes of an entry.
func (e *entry) read(path string) (err error) {
	switch e.stat.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		e.Link, err = os.Readlink(path)
		return err
	case unix.S_IFREG:
		if e.Bytes, err = os.ReadFile(path); err != nil {
			return err
		}
		if utf8.Valid(e.Bytes) {
			e.Text, e.Bytes = string(e.Bytes), nil
		}
	}
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if !strings.HasPrefix(name, trusted) && !strings.HasPrefix(name, security) {
			continue // SELinux has its own
		}
		value := make([]byte, unix.PathMax)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return err
		}
		if e.Attributes == nil {
			e.Attributes = map[string]string{}
		}
		e.Attributes[name] = string(value[:n])
	}
	return nil
}

// build mounts the volume as the build has left it that wrote the tree.
func (g *golden) build(t *testing.T, target string) {
	t.Helper()
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	must.Do(t, os.MkdirAll(target, 0o755))
	must.Do(t, unix.Mount(driver+":"+g.VolumeID, target, "tmpfs", flags, "size=2m,nr_inodes=1k"))
	for i := range g.Tree {
		err := g.Tree[i].build(target)
		if errors.Is(err, unix.EINVAL) && !harness.IsRoot() {
			t.Skipf("%s: this user namespace has no such owner: %v", g.Tree[i].Path, err)
		}
		must.Do(t, err)
	}
	must.Do(t, unix.Mount("", target, "", flags|unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
}

func (e *entry) build(target string) error {
	path := filepath.Join(target, e.Path)
	var mode uint32
	if _, err := fmt.Sscanf(e.Mode, "%o", &mode); err != nil {
		return err
	}
	var err error
	switch {
	case e.Same != "":
		return os.Link(filepath.Join(target, e.Same), path)
	case e.Link != "":
		return os.Symlink(e.Link, path)
	case mode&unix.S_IFMT == unix.S_IFREG:
		err = os.WriteFile(path, append(e.Bytes, e.Text...), 0o600)
	case e.Path != ".":
		err = os.Mkdir(path, 0o700)
	}
	if err == nil {
		err = os.Chown(path, e.UID, e.GID)
	}
	if err == nil {
		err = unix.Chmod(path, mode&^unix.S_IFMT)
	}
	for name, value := range e.Attributes {
		if !harness.IsRoot() {
			name = security + strings.TrimPrefix(name, trusted)
		}
		err = errors.Join(err, unix.Setxattr(path, name, []byte(value), 0))
	}
	return err
}

// identities returns all of each entry that shows whether somebody has written to it. Where a generation goes, the root
// changes, and files that were linked there have a link less.
func identities(all []entry, pruned bool) map[string]string {
	found := map[string]string{}
	for i := range all {
		e := all[i]
		written, changed := e.stat.Mtim, e.stat.Ctim
		if pruned {
			changed = unix.Timespec{}
			if e.Path == "." {
				written = changed
			}
		}
		e.Same = "" // that path may go
		text, err := json.Marshal(e)
		found[e.Path] = fmt.Sprint("inode ", e.stat.Ino, " of ", written, ", changed at ", changed, ": ", string(text), err)
	}
	return found
}
