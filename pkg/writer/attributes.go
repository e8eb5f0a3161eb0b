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

// The attributes' names start with the prefix in Options. refs is on each file, record on each generation. Anybody who may write to the
// volume may have written them too. So what is read is limited in size, and can only make files of this volume stay or go.
const (
	refsName   = "refs"
	recordName = "record"
	// maxRefs limits the attribute of a file in bytes, because it uses kernel memory.
	maxRefs = 4096
	// usualRefs is the buffer size that is enough for most files.
	usualRefs = 256
	// anyRefs stands for more objects than fit. The file is then withdrawn with any of them.
	anyRefs = "*"
	// MaxRecord limits a record in bytes. The kernel's limit is 64 KiB.
	MaxRecord = 60_000
	// tornMark is the last line of a record during a rewrite in place: some files may still be of the version before.
	tornMark = "torn\n"
)

// encodeRefs returns the attribute of a file that names refs, with a line "kind/namespace/name" for each. "" stands for none.
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

// decodeRefs returns the refs that an attribute names. ok is false if it may name any object.
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

// readRefs returns the attribute of an open file, or anyRefs if it is longer than the writer's own.
func (o *Options) readRefs(fd int) (string, error) {
	if o.AttributePrefix == "" {
		return "", nil
	}
	buf := make([]byte, usualRefs) // a larger buffer would double the stack of each pod's goroutine
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

// Record returns the record of the generation that dir shows, or "" if there is none. prefix is Options.AttributePrefix. Anybody who may
// write to the volume may have written the record.
func Record(dir *os.Root, prefix string) (string, error) {
	generation, err := openPresent(dir)
	if generation == noDescriptor || err != nil {
		return "", err
	}
	defer unix.Close(generation)
	return readRecord(generation, prefix), nil
}

// readRecord returns the record of a generation, or "" if it cannot be read or is too long.
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

// IsTorn reports whether a record says that a rewrite in place has not finished. Records that are older than this mark never say so.
func IsTorn(record string) bool { return strings.HasSuffix(record, tornMark) }

// isTorn reports whether the record of the present generation has the mark.
func (u *update) isTorn() bool { return IsTorn(readRecord(u.old, u.opts.AttributePrefix)) }

// openPresent opens the generation that dir shows. It returns noDescriptor if there is none.
func openPresent(dir *os.Root) (fd int, err error) {
	root, err := openRoot(dir)
	if err != nil {
		return noDescriptor, err
	}
	defer root.Close()
	l, err := list(int(root.Fd()))
	if err != nil || l.current == "" {
		return noDescriptor, err
	}
	if fd, err = openAt(int(root.Fd()), l.current, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return noDescriptor, fmt.Errorf("open generation %s: %w", l.current, err)
	}
	return fd, nil
}

// renewRecord writes the tree's Record to the present generation if it differs, with the mark if files are torn. The kernel replaces the
// attribute as a whole.
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
	u.opts.step("renew the record")
	return u.opts.setAttribute(u.old, recordName, text)
}
