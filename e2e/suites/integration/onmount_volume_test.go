package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// describe returns what is on a mounted volume, in lexical order.
func (n *node) describe(v *harness.Volume, stands map[string]string) []onMountEntry {
	n.t.Helper()
	target := n.Target(v)
	prefix, err := harness.AttributePrefix(target)
	if err != nil {
		n.t.Fatal(err)
	}
	generation, err := os.Readlink(filepath.Join(target, "..data"))
	if err != nil {
		n.t.Fatal(err)
	}
	replace := []string{generation, "{{generation}}"}
	for placeholder, text := range stands {
		replace = append(replace, text, placeholder)
	}
	replacer := strings.NewReplacer(replace...)
	var entries []onMountEntry
	err = filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		e, err := describeEntry(target, path, prefix)
		if err != nil {
			return fmt.Errorf("describe %s: %w", path, err)
		}
		e.Path, e.Link = replacer.Replace(e.Path), replacer.Replace(e.Link)
		for name, text := range e.Attributes {
			e.Attributes[name] = replacer.Replace(text)
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return entries
}

func describeEntry(root, path, prefix string) (onMountEntry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return onMountEntry{}, err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return onMountEntry{}, err
	}
	e := onMountEntry{Path: rel, Mode: fmt.Sprintf("%04o", info.Mode().Perm())}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		e.Link, err = os.Readlink(path)
		return e, err
	case info.Mode().IsRegular():
		content, err := os.ReadFile(path)
		if err != nil {
			return e, err
		}
		e.Content = string(content)
	}
	e.Attributes, err = attributesOf(path, prefix)
	return e, err
}

// attributesOf returns the extended attributes whose names begin with the prefix, by the rest of
// the name; nil for none.
func attributesOf(path, prefix string) (map[string]string, error) {
	buf := make([]byte, 64<<10)
	size, err := unix.Llistxattr(path, buf)
	if err != nil {
		return nil, os.NewSyscallError("llistxattr", err)
	}
	var found map[string]string
	for name := range bytes.SplitSeq(bytes.TrimRight(buf[:size], "\x00"), []byte{0}) {
		short, ours := strings.CutPrefix(string(name), prefix)
		if !ours {
			continue
		}
		value := make([]byte, 64<<10)
		size, err := unix.Lgetxattr(path, string(name), value)
		if err != nil {
			return nil, os.NewSyscallError("lgetxattr", err)
		}
		if found == nil {
			found = map[string]string{}
		}
		found[short] = string(value[:size])
	}
	return found, nil
}

// mountLike is how volumes are mounted on this machine: the prefix of attributes' names, and the
// file system's options.
type mountLike struct{ prefix, options string }

// mountLike returns how a volume is mounted.
func (n *node) mountLike(v *harness.Volume) mountLike {
	n.t.Helper()
	prefix, err := harness.AttributePrefix(n.Target(v))
	if err != nil {
		n.t.Fatal(err)
	}
	mounts, err := harness.MountsBelow(n.Target(v))
	if err != nil || len(mounts) != 1 {
		n.t.Fatalf("mounts of the volume: %v, %v", mounts, err)
	}
	options := slices.DeleteFunc(strings.Split(mounts[0].SuperOptions, ","), func(option string) bool {
		name, _, _ := strings.Cut(option, "=")
		return !slices.Contains([]string{"size", "nr_inodes", "noswap", "mode"}, name)
	})
	return mountLike{prefix, strings.Join(options, ",")}
}

// leave mounts a volume as a plugin has left it that has ended, and has the API server know its
// pod.
func (n *node) leave(v *harness.Volume, entries []onMountEntry, like mountLike, stands map[string]string) {
	n.t.Helper()
	replace := []string{"{{generation}}", "..2026_01_02_03_04_05.1234567890"}
	for placeholder, text := range stands {
		replace = append(replace, placeholder, text)
	}
	replacer := strings.NewReplacer(replace...)
	target := n.Target(v)
	err := errors.Join(n.Prepare(v), n.StorePod(n.t.Context(), v), os.Mkdir(target, 0o750))
	if err == nil {
		err = unix.Mount(harness.DriverName+":"+v.ID(), target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, like.options)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(target, replacer.Replace(e.Path))
		if err := makeEntry(path, e, replacer, like.prefix); err != nil {
			n.t.Fatalf("make %s: %v", path, err)
		}
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		n.t.Fatal(err)
	}
}

func makeEntry(path string, e onMountEntry, replacer *strings.Replacer, prefix string) error {
	mode, err := strconv.ParseUint(e.Mode, 8, 32)
	if err != nil {
		return err
	}
	switch {
	case e.Link != "":
		return os.Symlink(replacer.Replace(e.Link), path)
	case e.Content != "":
		err = os.WriteFile(path, []byte(e.Content), 0o600)
	case e.Path != ".":
		err = os.Mkdir(path, 0o700)
	}
	if err != nil {
		return err
	}
	for name, text := range e.Attributes {
		if err := unix.Setxattr(path, prefix+name, []byte(replacer.Replace(text)), 0); err != nil {
			return os.NewSyscallError("setxattr "+name, err)
		}
	}
	return os.Chmod(path, fs.FileMode(mode))
}

// pretendToBe returns a sample of one volume as that of another.
func pretendToBe(entries []onMountEntry, one, other *harness.Volume) []onMountEntry {
	replacer := strings.NewReplacer(one.ID(), other.ID(), one.Namespace+"/"+one.Pod, other.Namespace+"/"+other.Pod)
	changed := make([]onMountEntry, len(entries))
	for i, e := range entries {
		e.Attributes = maps.Clone(e.Attributes)
		for name, text := range e.Attributes {
			e.Attributes[name] = replacer.Replace(text)
		}
		changed[i] = e
	}
	return changed
}
