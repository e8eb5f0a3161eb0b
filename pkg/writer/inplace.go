package writer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// InPlace writes one volume, over and over, into the same files, so that a change is
// seen through whatever holds one of them. Like Writer it remembers digests only, an
// unchanged tree costs it no system call, and it is for use by one goroutine at a
// time, and for one directory during its life. To open its own files again, whatever
// their mode, it needs CAP_DAC_OVERRIDE where modes deny the owner something.
type InPlace struct{ memory }

// NewInPlace returns an InPlace that knows nothing yet of the directory: its first
// Write reads the files that are there.
func NewInPlace(opts Options) *InPlace { return &InPlace{newMemory(opts)} }

// Write makes dir show tree, and puts right whatever it finds amiss there on the
// way. When this InPlace knows that dir shows tree already, it does no I/O. The generation
// carries the new Record before the first byte is rewritten: after a kill, what it says is
// never older than the files.
//
// The first Write makes a generation as Writer does. Each later one keeps it, and
// of a file that stays also the inode:
//
//   - A file that changes is rewritten, and gets its mode and owner. On the way
//     nobody reads the new content who may not read it in the end.
//   - A new file, or directory, appears whole, and then its link.
//   - A file that the tree has no longer is emptied. It and its link stay, with its
//     mode and owner, and the same file gets the content should the path come back. Of
//     more than 256 such files those go that were emptied first.
//   - Where the tree has a directory in the place of a file, or the other way round,
//     what has the name is emptied and replaced.
//
// Before the first of this happens all new files are complete, and the room for all
// that grows is reserved. A cancelled ctx is heeded only until then, a deadline at each file. An
// error until then, such as that of a cancelled ctx, leaves every file as it was, and gives the
// room back, unless a deadline has passed. Emptied files
// of earlier writes go if there is no room otherwise. If that is not enough in a file
// system that has room for two generations of tree, then an interrupted write has left
// more than one: then what gets shorter is rewritten, or emptied, before the room is
// reserved, and files that it empties may go too. A later error leaves some files
// rewritten and others not, and comes with a Result whose Changed is true if there
// are any. After any error, or when the process was killed, maybe in the middle of a
// file, the next Write looks at the directory afresh and repairs it. A full file
// system is unix.ENOSPC to errors.Is, a cancelled ctx is ctx.Err().
//
// What holds of the root, of strange entries, of the contents and of generations that
// can't be removed for Writer.Write holds here too.
func (w *InPlace) Write(ctx context.Context, dir *os.Root, tree *volume.Tree) (Result, error) {
	return w.write(ctx, dir, tree, func(u *update, known *snapshot) error {
		return (&rewrite{update: u, known: known}).run(ctx)
	})
}

// rewrite is one Write of an InPlace that has to touch the directory.
type rewrite struct {
	*update
	known      *snapshot
	entries    []dirent // of the root, at first
	generation int      // the descriptor of the one generation
	// fresh is the indices in the tree of the files that are to be made.
	fresh []int
	// jobs is what has to be done to files that are there.
	jobs []job
	// spent is the files that an earlier write emptied and that are not in the tree.
	spent []string
	// excess is the emptied files that go, as there are too many.
	excess []string
	// dirs is the directories that have to get another mode or owner.
	dirs []directory
	// staging is the name of a directory beside the generation, closed to others,
	// in which fresh files are made; "" while there is none. It is named like a
	// generation, so the next write removes it if this one can't.
	staging string
	// grown is the files that have been given room for their new content.
	grown []grown
}

// job is what has to be done to a file that is there. want is nil if mode and owner
// stay as they are.
type job struct {
	path string
	data []byte
	want *attrs
	// content says that the file gets data.
	content bool
	// leaves says that the tree has the file no longer. To cut it off, also where it was empty, sets
	// its time, by which a later process knows the newest.
	leaves bool
	// room is how many bytes a scan found the file to take, 0 if there was none.
	room int64
	// had is the attribute that names the file's Refs as it is, refs as it is to be.
	had, refs string
}

// cuts reports whether the file is to be cut off at the end of its data.
func (j *job) cuts() bool { return j.content || j.leaves || j.shrinks() }

// shrinks reports whether the file has room to give back.
func (j *job) shrinks() bool { return j.room > wholePages(int64(len(j.data))) }

// grown is a file with room beyond its end, and where that is.
type grown struct {
	path string
	size int64
}

// rootPath leads from the generation to the volume's root. No path of a tree can be
// that.
const rootPath = ".."

func (r *rewrite) run(ctx context.Context) error {
	trusted := r.known
	if trusted != nil && !r.next.dir.satisfiedBy(trusted.dir) {
		trusted = nil // only a scan tells what directories there are
	}
	var err error
	if r.entries, err = r.begin(ctx, trusted); err != nil {
		return err
	}
	if r.base == nil {
		return r.show(ctx, r.entries, r.known)
	}
	if r.generation, err = openPath(r.root, r.base.generation); err != nil {
		return fmt.Errorf("open generation %s: %w", r.base.generation, err)
	}
	defer unix.Close(r.generation)
	if err := r.plan(); err != nil {
		return err
	}
	if err := r.prepareOrMakeRoom(ctx); err != nil {
		return err
	}
	r.next.generation, r.result.Generation = r.base.generation, r.base.generation
	return errors.Join(r.commit(), r.unstage())
}

// plan compares what is there with what is to be.
func (r *rewrite) plan() error {
	there := r.base.all()
	old := cursor{there}
	for i := range r.next.files {
		want := &r.next.files[i]
		had := old.find(want.path)
		if had == nil {
			r.fresh = append(r.fresh, i)
			continue
		}
		j := job{path: want.path, data: r.tree.Files[i].Data, want: &want.attrs, content: !want.sameContent(had), room: had.room, had: had.refs, refs: want.refs}
		if j.content || j.shrinks() || j.refs != j.had || !want.attrs.satisfiedBy(had.attrs) {
			r.jobs = append(r.jobs, j)
		}
	}
	r.planEmptied(there)
	if err := r.planDirs(); err != nil {
		return err
	}
	return r.planTops()
}

// planEmptied sees to the files that are there and that the tree does not have.
func (r *rewrite) planEmptied(there []entry) {
	none := sha256.Sum256(nil)
	wanted, emptied, now := cursor{r.next.files}, cursor{r.base.emptied}, time.Now().UnixNano()
	scanned := len(r.base.dirs) > 0 // then an empty file may be an emptied one
	for i := range there {
		had := &there[i]
		if wanted.find(had.path) != nil {
			continue
		}
		e := entry{path: had.path, attrs: had.attrs, sum: none, changed: had.changed}
		j := job{path: had.path, content: had.size > 0, room: had.room, had: had.refs}
		if wasEmptied := emptied.find(had.path) != nil || scanned && had.size == 0; !wasEmptied {
			j.leaves, e.changed = true, now
		}
		if j.leaves || j.shrinks() || j.had != "" {
			r.jobs = append(r.jobs, j)
		} else {
			r.spent = append(r.spent, had.path)
		}
		if !inTheWay(r.tree.Files, had.path) {
			r.next.emptied = append(r.next.emptied, e)
		}
	}
	r.excess = r.next.forgetEmptied(maxEmptied)
}

// planDirs finds the directories, and the root, that differ from what is asked for.
// What the last write left needs no look: see run.
func (r *rewrite) planDirs() error {
	var st unix.Stat_t
	if err := unix.Fstat(r.root, &st); err != nil {
		return fmt.Errorf("stat the volume's root: %w", err)
	}
	for _, d := range append([]directory{{rootPath, statAttrs(&st)}}, r.base.dirs...) {
		if !r.next.dir.satisfiedBy(d.attrs) {
			r.dirs = append(r.dirs, d)
		}
	}
	return nil
}

// planTops plans the links of the tree's files and of the emptied ones.
func (r *rewrite) planTops() error {
	tops := topNames(r.tree)
	for i := range r.next.emptied {
		name, _, _ := strings.Cut(r.next.emptied[i].path, "/")
		tops = append(tops, name)
	}
	slices.Sort(tops)
	r.links = links{}
	return r.planLinks(slices.Clone(r.entries), r.known, slices.Compact(tops))
}

// inTheWay reports whether a file at path keeps files, which are sorted, from being
// there: one of them is below it, or where a directory above it is.
func inTheWay(files []volume.File, path string) bool {
	dir, _ := split(path)
	if _, ok := fileAbove(files, dir); ok {
		return true
	}
	i, _ := slices.BinarySearchFunc(files, path+"/", func(f volume.File, p string) int {
		return strings.Compare(f.Path, p)
	})
	return i < len(files) && strings.HasPrefix(files[i].Path, path+"/")
}
