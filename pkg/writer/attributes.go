package writer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// The attributes follow the prefix of Options: refs is on each file, record on each generation. Whoever may write to
// the volume may have written them too: what is read has bounds, and can do no more than to make files of this volume
// stay or go.
const (
	refsName   = "refs"
	recordName = "record"
	// maxRefs bounds the attribute of a file, in bytes: it takes memory of the kernel.
	maxRefs = 4096
	// usualRefs is enough for most.
	usualRefs = 256
	// anyRefs stands for more objects than fit: the file goes with any of them.
	anyRefs = "*"
	// MaxRecord bounds a record, in bytes. The kernel takes 64 KiB.
	MaxRecord = 60_000
	// tornMark is the last line of a record while files are rewritten in place: some may be of the version before.
	tornMark = "torn\n"
)

// encodeRefs returns the attribute of a file that names refs, a line "kind/namespace/name" each; "" stands for none.
func encodeRefs(refs []volume.Ref) string {
	var b strings.Builder
	for i := range refs {
		ref := &refs[i]
		for _, part := range [...]string{string(ref.Kind), "/", ref.Namespace, "/", ref.Name, "\n"} {
			b.WriteString(part)
		}
	}
	if b.Len() > maxRefs {
		return anyRefs
	}
	return b.String()
}

// decodeRefs returns the refs that an attribute names; not ok if it may name any.
func decodeRefs(attribute string) (refs []volume.Ref, ok bool) {
	for line := range strings.Lines(attribute) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "/")
		if !strings.HasSuffix(line, "\n") || len(parts) != 3 || slices.Contains(parts, "") {
			return nil, false
		}
		ref := volume.Ref{Kind: volume.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
		if !slices.Contains(volume.Kinds(), ref.Kind) {
			return nil, false
		}
		refs = append(refs, ref)
	}
	return refs, len(refs) > 0
}

// readRefs returns the attribute of an open file, anyRefs for one that is longer than ours.
func (o *Options) readRefs(fd int) (string, error) {
	if o.AttributePrefix == "" {
		return "", nil
	}
	buf := make([]byte, usualRefs) // a larger one would double the stack of each pod's goroutine
	n, err := unix.Fgetxattr(fd, o.AttributePrefix+refsName, buf)
	if errors.Is(err, unix.ERANGE) {
		if n, err = unix.Fgetxattr(fd, o.AttributePrefix+refsName, nil); err == nil && n <= maxRefs {
			buf = make([]byte, n)
			n, err = unix.Fgetxattr(fd, o.AttributePrefix+refsName, buf)
		} else if err == nil {
			return anyRefs, nil
		}
	}
	switch {
	case errors.Is(err, unix.ENODATA):
		return "", nil
	case errors.Is(err, unix.ERANGE):
		return anyRefs, nil
	case err != nil:
		return "", fmt.Errorf("read attribute %s%s: %w", o.AttributePrefix, refsName, err)
	}
	return string(buf[:n]), nil
}

func (o *Options) setAttribute(fd int, name, value string) error {
	if err := unix.Fsetxattr(fd, o.AttributePrefix+name, []byte(value), 0); err != nil {
		return fmt.Errorf("set attribute %s%s: %w", o.AttributePrefix, name, err)
	}
	return nil
}

// Record returns the record of the generation that dir shows, "" if there is none. prefix is that of Options. Whoever
// may write to the volume may have written the record.
func Record(dir *os.Root, prefix string) (string, error) {
	generation, err := openPresent(dir)
	if generation < 0 || err != nil {
		return "", err
	}
	defer unix.Close(generation)
	return readRecord(generation, prefix), nil
}

// readRecord returns the record of a generation. One that can't be read, or is too long, is none.
func readRecord(generation int, prefix string) string {
	n, err := unix.Fgetxattr(generation, prefix+recordName, nil)
	if err != nil || n > MaxRecord {
		return ""
	}
	buf := make([]byte, n)
	if n, err = unix.Fgetxattr(generation, prefix+recordName, buf); err != nil {
		return ""
	}
	return string(buf[:n])
}

// IsTorn says whether a record tells of a rewrite in place that has not ended. A record of before this mark tells of none.
func IsTorn(record string) bool { return strings.HasSuffix(record, tornMark) }

// isTorn says whether the record of the present generation does.
func (u *update) isTorn() bool { return IsTorn(readRecord(u.old, u.opts.AttributePrefix)) }

// openPresent opens the generation that dir shows, -1 if there is none.
func openPresent(dir *os.Root) (fd int, err error) {
	root, err := openRoot(dir)
	if err != nil {
		return -1, err
	}
	defer root.Close()
	l, err := list(int(root.Fd()))
	if err != nil || l.current == "" {
		return -1, err
	}
	if fd, err = openAt(int(root.Fd()), l.current, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return -1, fmt.Errorf("open generation %s: %w", l.current, err)
	}
	return fd, nil
}

// renewRecord has the present generation carry the tree's Record, unless it does, with the mark of torn files if they are. The
// kernel swaps it whole.
func (u *update) renewRecord() error {
	if u.opts.AttributePrefix == "" {
		return nil
	}
	text := u.tree.Record
	if u.torn {
		text += tornMark
	}
	buf := make([]byte, len(text)+1)
	n, err := unix.Fgetxattr(u.old, u.opts.AttributePrefix+recordName, buf)
	if err == nil && string(buf[:n]) == text || errors.Is(err, unix.ENODATA) && text == "" {
		return nil
	}
	return u.opts.setAttribute(u.old, recordName, text)
}
