package writer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// memory is what a Writer knows about the files that it wrote. It is valid while ..data names that generation. It saves reading unchanged
// files.
type memory struct {
	generation string
	// files are in the order of their paths. A map of one file would take six times the memory.
	files []knownFile
}

type knownFile struct {
	path string
	known
}

// of returns what is known about a file.
func (m *memory) of(path string) (known, bool) {
	i, ok := slices.BinarySearchFunc(m.files, path, func(f knownFile, path string) int { return strings.Compare(f.path, path) })
	if !ok {
		return known{}, false
	}
	return m.files[i].known, true
}

// known describes a file without its content.
type known struct {
	attrs
	size int
	sum  [32]byte
	// data is where the content of a large file is, or was. It does not keep the content, and never equals that of another one.
	data weak.Pointer[byte]
	// refs is the attribute with the file's objects.
	refs string
}

// largeFile is the size from which the place of a content is compared first. A smaller one is hashed as fast.
const largeFile = 4 << 10

// digest returns the digest of a content, and its place if it is large. A content never changes, so one at the place of the last write has
// the same digest.
func digest(data []byte, before known) (sum [sha256.Size]byte, place weak.Pointer[byte]) {
	if len(data) >= largeFile {
		place = weak.Make(&data[0])
		if place == before.data && len(data) == before.size {
			return before.sum, place
		}
	}
	return sha256.Sum256(data), place
}

// isSatisfiedBy reports whether an existing file that have describes can be used as it is for k.
func (k *known) isSatisfiedBy(have *known) bool {
	return k.attrs.isSatisfiedBy(have.attrs) && k.size == have.size && k.sum == have.sum && k.refs == have.refs
}

// remember returns what is known after a successful update. A kept file is known as well as before.
func (u *update) remember(before memory) memory {
	m := memory{generation: u.result.Generation, files: make([]knownFile, 0, len(u.files))}
	for i := range u.files {
		f := &u.tree.Files[i]
		k, ok := u.files[i].known, true
		if f.Keep {
			k, ok = before.of(f.Path)
			ok = ok && before.generation == u.current
		}
		if ok {
			m.files = append(m.files, knownFile{f.Path, k})
		}
	}
	slices.SortFunc(m.files, func(a, b knownFile) int { return strings.Compare(a.path, b.path) })
	return m
}

// compare finds out which files of the tree the present generation has, and whether it has nothing else.
func (u *update) compare(ctx context.Context, memory memory) (same bool, err error) {
	if u.old == noDescriptor {
		return false, nil
	}
	if memory.generation != u.current {
		memory.files = nil
	}
	same = true
	old, buf := newDirs(u.old), []byte(nil)
	defer old.close()
	for i := range u.files {
		f, state := &u.tree.Files[i], &u.files[i]
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("compare %s: %w", f.Path, err)
		}
		switch had, ok := memory.of(f.Path); {
		case f.Keep || ok && state.isSatisfiedBy(&had):
			state.have = equal
		case ok && !u.opts.InPlace:
			state.have = differs
		default:
			if n := len(f.Data) + 1; n > cap(buf) {
				buf = make([]byte, n)
			}
			state.have = u.compareFile(old, f, state, buf)
		}
		same = same && state.have == equal
	}
	if !same || !u.opts.InPlace {
		return same && u.hasNothingElse(), nil
	}
	full, _, err := u.extra()
	return len(full) == 0, err
}

// compareFile compares a file through its descriptor. Only "does not exist" and "not a regular file" count as absent. A file that cannot be
// read for another reason may be held by somebody.
func (u *update) compareFile(old *dirs, f *volume.File, want *fileState, buf []byte) have {
	at, last, err := old.at(f.Path)
	fd := noDescriptor
	if err == nil {
		fd, err = openAt(at, last, unix.O_RDONLY)
	}
	if isAbsent(err) || errors.Is(err, unix.ENXIO) { // ENXIO: a socket
		return absent
	}
	if err != nil {
		return differs // the file exists, but descriptors are scarce, or it is under a lease
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return differs
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return absent
	}
	size := int64(want.size)
	if refs, err := u.opts.readRefs(fd); err != nil || refs != want.refs {
		return differs
	}
	if st.Size != size || !want.attrs.isSatisfiedBy(attrsOf(&st)) ||
		u.opts.InPlace && st.Blocks*512 > wholePages(size) { // a killed rewrite left space beyond the end
		return differs
	}
	if n, err := unix.Read(fd, buf[:size+1]); err != nil || !bytes.Equal(buf[:n], f.Data) {
		return differs
	}
	return equal
}

// hasNothingElse reports whether the directories of the present generation have their mode and owner, and as many entries as in the tree.
// All files of the tree were found already, so there is nothing else.
func (u *update) hasNothingElse() bool {
	for name, n := range u.entries {
		fd, err := openAt(u.old, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return false
		}
		dir := os.NewFile(uintptr(fd), name)
		have, err := statAttrs(fd)
		names, _ := dir.Readdirnames(n + 1)
		if err = errors.Join(err, dir.Close()); err != nil || len(names) != n || !dirAttrs(u.tree).isSatisfiedBy(have) {
			return false
		}
	}
	return true
}
