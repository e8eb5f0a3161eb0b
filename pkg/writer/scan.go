package writer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"slices"

	"golang.org/x/sys/unix"
)

// current returns what ..data points at, nil if that is no generation. What is
// known of it from the last write saves reading it.
func (u *update) current(ctx context.Context, known *snapshot) (*snapshot, error) {
	name, err := currentName(u.root)
	switch {
	case name == "" || err != nil:
		return nil, err
	case known != nil && known.generation == name:
		return known, nil
	}
	return scan(ctx, u.root, name, scanOptions{names: u.names, digests: true})
}

// currentName returns the name of the generation that ..data points at, "" if there is none.
func currentName(root int) (string, error) {
	name, err := readlink(root, dataName)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return "", nil // no such entry, or no link
	case err != nil:
		return "", fmt.Errorf("read link %s: %w", dataName, err)
	case !isGeneration(name):
		return "", nil
	}
	return name, nil
}

// scanOptions says what a scan reads of a file beside its status.
type scanOptions struct {
	names attributeNames
	// digests has it read the contents.
	digests bool
}

// scan reads the generation name below the directory root. It returns nil if there
// is no such directory; whatever else in it is not as a tree has it makes the result
// irregular. The error is that of ctx, or one that says nothing about the generation:
// to take files for damaged would cost those who hold them.
func scan(ctx context.Context, root int, name string, opts scanOptions) (*snapshot, error) {
	fd, err := openDir(root, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	s := &scanner{snapshot: &snapshot{generation: name}, opts: opts, hash: sha256.New(), buf: make([]byte, 64<<10)}
	if saysOfEntry(err) {
		s.irregular = true
		return s.snapshot, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open generation %s: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat generation %s: %w", name, err)
	}
	s.dir, s.record = statAttrs(&st), readRecord(fd, opts.names.record)
	if err := s.directory(ctx, fd, "", s.dir); err != nil {
		return nil, fmt.Errorf("read generation %s: %w", name, err)
	}
	slices.SortFunc(s.files, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return s.snapshot, nil
}

// A container that can write to its volume may have put there what no tree has. It must not make a scan
// take long, or much memory.
const (
	// holes is by how much a file may be larger than what is allocated for it: a file system may
	// keep small ones elsewhere.
	holes = 64 << 10
	// maxScannedPaths is more than the bytes of all paths of a tree, unless --max-volume-size is large.
	maxScannedPaths = 64 << 20
)

type scanner struct {
	*snapshot
	opts scanOptions
	// paths is the bytes of all paths so far.
	paths int
	hash  hash.Hash
	buf   []byte
}

// directory reads the open directory fd, whose path in the generation is dir,
// and which has attributes has.
func (s *scanner) directory(ctx context.Context, fd int, dir string, has attrs) error {
	entries, err := readDir(fd)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	if len(entries) == 0 && dir != "" {
		s.note(dir) // no tree has a directory without a file in it
	} else {
		s.dirs = append(s.dirs, directory{cmp.Or(dir, "."), has})
		if has != s.dir {
			s.irregular = true
		}
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.paths += len(dir) + len(e.name); s.paths > maxScannedPaths {
			s.irregular = true
			return nil
		}
		path := e.name
		if dir != "" {
			path = dir + "/" + e.name
		}
		if err := s.entry(ctx, fd, e.name, path); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) entry(ctx context.Context, at int, name, path string) error {
	fd, err := openAny(at, name)
	if saysOfEntry(err) {
		s.note(path)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return s.directory(ctx, fd, path, statAttrs(&st))
	case unix.S_IFREG:
		if st.Size > st.Blocks*blockSize+holes {
			s.note(path)
			return nil
		}
		e := entry{path: path, attrs: statAttrs(&st), size: st.Size, room: st.Blocks * blockSize, changed: st.Mtim.Nano()}
		if s.opts.names.refs != "" {
			e.refs = readRefs(fd, s.opts.names.refs)
		}
		if s.opts.digests {
			if err := s.digest(fd, &e); err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}
		}
		s.files = append(s.files, e)
	default:
		s.note(path)
	}
	return nil
}

// note keeps in mind that there is something at path that no tree describes.
func (s *scanner) note(path string) {
	s.irregular = true
	s.strange = append(s.strange, path)
}

// saysOfEntry reports whether an error of opening comes from what the entry is. Any
// other, such as that of too many open files, may pass.
func saysOfEntry(err error) bool {
	return slices.ContainsFunc([]error{
		unix.EACCES, unix.EPERM, unix.ELOOP, unix.ENXIO, unix.ENODEV, unix.ENOENT, unix.ENOTDIR,
	}, func(target error) bool { return errors.Is(err, target) })
}

// digest reads an open file into e.sum.
func (s *scanner) digest(fd int, e *entry) error {
	s.hash.Reset()
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, s.buf) })
		if err != nil {
			return err
		}
		if n == 0 {
			s.hash.Sum(e.sum[:0])
			return nil
		}
		s.hash.Write(s.buf[:n])
	}
}

func statAttrs(st *unix.Stat_t) attrs {
	return attrs{mode: st.Mode & 0o7777, uid: int(st.Uid), gid: int(st.Gid)}
}
