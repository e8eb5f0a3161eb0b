package writer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	timeLayout = "2006_01_02_15_04_05"
	// maxNameTries is how many random names are tried. One is nearly always
	// enough, as leftovers are gone by then.
	maxNameTries = 10
)

// newGeneration makes the empty directory of the next generation.
func (u *update) newGeneration() (string, error) {
	for try := 1; ; try++ {
		name := fmt.Sprintf("..%s.%09d", u.now().UTC().Format(timeLayout), rand.Uint32N(1e9))
		err := u.fs.mkdir(u.root, name)
		if err == nil {
			return name, nil
		}
		if !errors.Is(err, unix.EEXIST) || try == maxNameTries {
			return "", fmt.Errorf("create generation %s: %w", name, err)
		}
	}
}

// isGeneration reports whether a name is one that newGeneration makes.
func isGeneration(name string) bool {
	rest, ok := strings.CutPrefix(name, "..")
	if !ok || len(rest) < len(timeLayout)+2 || rest[len(timeLayout)] != '.' {
		return false
	}
	if _, err := time.Parse(timeLayout, rest[:len(timeLayout)]); err != nil {
		return false
	}
	return strings.Trim(rest[len(timeLayout)+1:], "0123456789") == ""
}

// fill puts the tree into the new generation's directory: what base has just so
// is hard-linked, all else is written. Modes and owners are final when it returns.
func (u *update) fill(ctx context.Context) error {
	b := &builder{fs: u.fs, refs: u.names.refs, dirAttrs: u.next.dir}
	defer b.close()
	var old cursor
	oldName := ""
	if u.base != nil {
		old.files, oldName = u.base.files, u.base.generation
	}
	if err := b.start(u.root, u.next.generation, oldName); err != nil {
		return fmt.Errorf("open generation %s: %w", u.next.generation, err)
	}
	if err := u.setRecord(b.top().dir); err != nil {
		return err
	}
	for i := range u.tree.Files {
		if err := u.put(ctx, b, i, old.find(u.tree.Files[i].Path)); err != nil {
			return err
		}
	}
	return b.finish()
}

// put adds file i of the tree to a generation: as a link to the old generation's if
// that, had, is just so, else anew. A nil had stands for none.
func (u *update) put(ctx context.Context, b *builder, i int, had *entry) error {
	f, want := &u.tree.Files[i], &u.next.files[i]
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write %s: %w", f.Path, err)
	}
	dir, name := split(f.Path)
	if err := b.enter(dir); err != nil {
		return err
	}
	if had != nil && want.satisfiedBy(had) {
		err := b.link(name)
		if err == nil {
			u.result.Linked++
			return nil
		}
		// A link saves work, so no reason for its failure is worth an error that writing would
		// not give too.
		if u.linksOnly {
			return fmt.Errorf("link %s: %w", f.Path, err)
		}
	}
	if err := b.write(name, f.Data, want); err != nil {
		return fmt.Errorf("write %s: %w", f.Path, err)
	}
	u.result.Files++
	u.result.Bytes += int64(len(f.Data))
	return nil
}

// builder walks down and up the directories of a new generation, and those of the
// old one beside it, with one descriptor for each on the way from the top.
type builder struct {
	fs       fileSystem
	refs     string
	dirAttrs attrs
	// born is the attributes of the new generation's directory as it was made, whose
	// owner whatever is made in it gets too, also where the volume's root passes its
	// group on.
	born  attrs
	stack []level
}

// level is a directory that is open. old is that of the old generation, -1 if it
// has none.
type level struct {
	path     string // in the generation; "" is the generation itself
	dir, old int
}

func (b *builder) top() *level { return &b.stack[len(b.stack)-1] }

// start opens the new generation, and the old one unless its name is empty.
func (b *builder) start(root int, newName, oldName string) error {
	dir, err := openDir(root, newName)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		unix.Close(dir)
		return err
	}
	b.born = statAttrs(&st)
	old := -1
	if oldName != "" {
		if fd, err := openPath(root, oldName); err == nil {
			old = fd
		}
	}
	b.stack = append(b.stack, level{dir: dir, old: old})
	return nil
}

// enter makes dir the top of the stack. As paths come sorted, a directory that
// was left never comes again.
func (b *builder) enter(dir string) error {
	for !below(dir, b.top().path) {
		if err := b.leave(); err != nil {
			return err
		}
	}
	for b.top().path != dir {
		rest := strings.TrimPrefix(dir[len(b.top().path):], "/")
		name, _, _ := strings.Cut(rest, "/")
		if err := b.descend(name, dir[:len(dir)-len(rest)+len(name)]); err != nil {
			return err
		}
	}
	return nil
}

// below reports whether path is dir or below it.
func below(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (dir == "" || rest == "" || rest[0] == '/')
}

func (b *builder) descend(name, path string) error {
	parent := b.top()
	if err := b.fs.mkdir(parent.dir, name); err != nil {
		return fmt.Errorf("create directory %s: %w", path, err)
	}
	dir, err := openDir(parent.dir, name)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", path, err)
	}
	old := -1
	if parent.old >= 0 {
		if fd, err := openPath(parent.old, name); err == nil {
			old = fd
		}
	}
	b.stack = append(b.stack, level{path, dir, old})
	return nil
}

// leave gives the top directory its owner and mode, now that all is in it, and
// closes it.
func (b *builder) leave() error {
	l := b.pop()
	defer l.close()
	if err := b.setAttrs(l.dir, b.dirAttrs); err != nil {
		return fmt.Errorf("directory %q: %w", l.path, err)
	}
	return nil
}

// setAttrs gives what has just been made its owner, unless it has that, and its mode.
func (b *builder) setAttrs(fd int, a attrs) error {
	if a.sameOwner(b.born) {
		a.uid, a.gid = volume.NoOwner, volume.NoOwner
	}
	return setAttrs(b.fs, fd, a)
}

func (b *builder) finish() error {
	for len(b.stack) > 0 {
		if err := b.leave(); err != nil {
			return err
		}
	}
	return nil
}

// close closes what an error left open.
func (b *builder) close() {
	for len(b.stack) > 0 {
		b.pop().close()
	}
}

func (b *builder) pop() level {
	l := *b.top()
	b.stack = b.stack[:len(b.stack)-1]
	return l
}

func (l level) close() {
	unix.Close(l.dir)
	if l.old >= 0 {
		unix.Close(l.old)
	}
}

// link takes a file over from the old generation.
func (b *builder) link(name string) error {
	l := b.top()
	if l.old < 0 {
		return unix.ENOENT
	}
	return b.fs.link(l.old, l.dir, name)
}

// write makes a file. Its mode comes last: until then nobody else can open it,
// and a change of owner clears bits of the mode.
func (b *builder) write(name string, data []byte, want *entry) error {
	fd, err := b.fs.create(b.top().dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if want.refs != "" {
		if err := setRefs(b.fs, fd, b.refs, want.refs); err != nil {
			return err
		}
	}
	if err := writeAll(b.fs, fd, data); err != nil {
		return err
	}
	return b.setAttrs(fd, want.attrs)
}

func writeAll(fs fileSystem, fd int, data []byte) error {
	for len(data) > 0 {
		n, err := fs.write(fd, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func setRefs(fs fileSystem, fd int, name, value string) error {
	if err := fs.setAttribute(fd, name, value); err != nil {
		return fmt.Errorf("set attribute %s: %w", name, err)
	}
	return nil
}

func setAttrs(fs fileSystem, fd int, a attrs) error {
	if a.uid != volume.NoOwner || a.gid != volume.NoOwner {
		if err := fs.chown(fd, a.uid, a.gid); err != nil {
			return fmt.Errorf("set owner %d:%d: %w", a.uid, a.gid, err)
		}
	}
	if err := fs.chmod(fd, a.mode); err != nil {
		return fmt.Errorf("set mode %04o: %w", a.mode, err)
	}
	return nil
}
