package writer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// openedName is the attribute of a file that somebody has opened since it shows what it shows: the time of that. A link
// carries it to the next generation; a file that is rewritten in place loses it before the first byte changes.
const openedName = "opened"

// Receipt tells of a file of a generation whether it was opened.
type Receipt struct {
	// Path is relative to the generation.
	Path string
	// Refs are the objects that the file names. Any says that it may be of any.
	Refs []volume.Ref
	Any  bool
	// Written is when its content was written.
	Written time.Time
	// Opened is when it was first opened; zero if it has no receipt.
	Opened time.Time
	// Size is its length in bytes.
	Size int64
}

// Generation is an open generation of a volume. It is for use by one goroutine, which closes it.
type Generation struct {
	// Name is that of its directory.
	Name string
	opts Options
	fd   int
}

// OpenGeneration opens a generation of dir, "" for the one that it shows. The error is fs.ErrNotExist to errors.Is if there
// is none.
func OpenGeneration(dir *os.Root, opts Options, name string) (*Generation, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if name == "" {
		l, err := list(int(root.Fd()))
		if err != nil {
			return nil, err
		}
		if name = l.current; name == "" {
			return nil, fmt.Errorf("open the present generation: %w", fs.ErrNotExist)
		}
	}
	fd, err := openAt(int(root.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open generation %s: %w", name, err)
	}
	return &Generation{Name: name, opts: opts, fd: fd}, nil
}

// Close closes the generation.
func (g *Generation) Close() { unix.Close(g.fd) }

// Fd is the descriptor of its directory, until it is closed.
func (g *Generation) Fd() int { return g.fd }

// Receipts calls visit for each file, with a descriptor of the file that is good for the call.
func (g *Generation) Receipts(visit func(r Receipt, file int) error) error {
	at := newDirs(g.fd)
	defer at.close()
	return walk(g.fd, ".", func(p string, e fs.DirEntry) error {
		if !e.Type().IsRegular() {
			return nil
		}
		dir, last, err := at.at(p)
		if err != nil {
			return err
		}
		fd, err := openAt(dir, last, unix.O_RDONLY)
		if err != nil {
			return fmt.Errorf("open %s: %w", p, err)
		}
		defer unix.Close(fd)
		r, err := g.receipt(fd, p)
		if err != nil {
			return fmt.Errorf("read the receipt of %s: %w", p, err)
		}
		return visit(r, fd)
	})
}

func (g *Generation) receipt(fd int, p string) (r Receipt, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return r, err
	}
	refs, err := g.opts.readRefs(fd)
	if err != nil {
		return r, err
	}
	r = Receipt{Path: p, Written: time.Unix(st.Mtim.Unix()), Size: st.Size}
	if refs != "" {
		named, ok := decodeRefs(refs)
		r.Refs, r.Any = named, !ok
	}
	var buf [len(time.RFC3339Nano)]byte
	n, err := unix.Fgetxattr(fd, g.opts.AttributePrefix+openedName, buf[:])
	if err == nil { // else it has none, or one that is not ours
		r.Opened, _ = time.Parse(time.RFC3339Nano, string(buf[:n]))
	}
	return r, nil
}

// WithFile calls do with the descriptor of a file.
func (g *Generation) WithFile(p string, do func(file int) error) error {
	fd, err := openAt(g.fd, p, unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("open %s: %w", p, err)
	}
	defer unix.Close(fd)
	return do(fd)
}

// SetReceipt gives a file its receipt, unless it has one, and calls then with its descriptor.
func (g *Generation) SetReceipt(p string, opened time.Time, then func(file int) error) error {
	fd, err := openAt(g.fd, p, unix.O_RDONLY)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fsetxattr(fd, g.opts.AttributePrefix+openedName, []byte(opened.UTC().Format(time.RFC3339Nano)), unix.XATTR_CREATE)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("set the receipt of %s: %w", p, err)
	}
	return then(fd)
}

// drop takes an attribute from a file, if it has it.
func (o *Options) drop(fd int, name string) error {
	if o.AttributePrefix == "" {
		return nil
	}
	if err := unix.Fremovexattr(fd, o.AttributePrefix+name); err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("remove attribute %s%s: %w", o.AttributePrefix, name, err)
	}
	return nil
}
