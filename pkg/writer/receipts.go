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

// openedName is the attribute of a file that somebody has opened since it got its present content. The value is the time. A hard link keeps
// it in the next generation. A file that is rewritten in place loses it before the first byte changes.
const openedName = "opened"

// Receipt says whether a file of a generation was opened.
type Receipt struct {
	// Path is relative to the generation.
	Path string
	// Refs are the objects that the file shows. Any means that it may show any object.
	Refs []volume.Ref
	Any  bool
	// Written is when the content was written.
	Written time.Time
	// Opened is when it was first opened; zero if it has no receipt.
	Opened time.Time
	// Size is the length in bytes.
	Size int64
}

// Generation is an open generation of a volume. It is used by one goroutine, which closes it.
type Generation struct {
	// Name is the name of its directory.
	Name string
	opts Options
	fd   int
}

// OpenGeneration opens a generation of dir by name. "" stands for the one that dir shows. If there is none, the error wraps fs.ErrNotExist.
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

// Fd returns the descriptor of its directory. It is valid until Close.
func (g *Generation) Fd() int { return g.fd }

// Receipts calls visit for each file, with a descriptor that is valid during the call. It returns the first error.
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
	if err == nil { // otherwise it has no receipt, or one that is not ours
		r.Opened, _ = time.Parse(time.RFC3339Nano, string(buf[:n]))
	}
	return r, nil
}

// WithFile calls do with a descriptor of a file, valid during the call.
func (g *Generation) WithFile(p string, do func(file int) error) error {
	fd, err := openAt(g.fd, p, unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("open %s: %w", p, err)
	}
	defer unix.Close(fd)
	return do(fd)
}

// SetReceipt writes a file's receipt, unless it has one, and calls then with a descriptor of the file.
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

// drop removes an attribute from a file, if it exists.
func (o *Options) drop(fd int, name string) error {
	if o.AttributePrefix == "" {
		return nil
	}
	if err := unix.Fremovexattr(fd, o.AttributePrefix+name); err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("remove attribute %s%s: %w", o.AttributePrefix, name, err)
	}
	return nil
}
