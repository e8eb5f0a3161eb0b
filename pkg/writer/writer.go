// Package writer makes a directory show a tree of files.
//
// It owns the layout inside a volume: the generations, the ..data link that chooses one of them, the links that users
// see, and the repair of whatever an interrupted write left. Everything it does is relative to the directory handle
// that it is given. It must not know where the content comes from, how the directory is mounted, or who reads it.
// Contents never get into its errors.
//
// The layout is the one of the kubelet's own volumes:
//
//	..2006_01_02_15_04_05.1234567890001/   a generation: the files themselves
//	..data -> ..2006_01_02_15_04_05.1234567890001
//	key -> ..data/key
//	conf -> ..data/conf
//
// The names of generations are in their order.
// A generation carries the record of its tree, and each file the names of its objects, as extended attributes: so
// Withdraw needs nothing else. Nothing is kept beside the volume.
//
// By default readers see all of one version or all of the next: a generation is never changed once ..data points at it,
// but by a Withdraw that can't make another. A reader may still be at work in it when ..data switches, so it stays until
// Prune, unless there is no room for it. With Options.InPlace, whoever holds a file sees each change of it, as a container
// does that mounts one key with subPath. There is one generation for ever, and a change rewrites the files in it: a reader
// may see a file half-written, or files of two versions. The file of a key that goes stays, empty.
//
// Somebody else may write to a volume too, a container with the node's CAP_SYS_ADMIN. That can delay the updates of that
// volume, and nothing else: no link is followed, and no descriptor is held for what it has put there.
package writer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// Options says how a volume is written. The zero value is valid.
type Options struct {
	// AttributePrefix starts the names of extended attributes, as "trusted.refvol." does. Without one no record is
	// kept, and no file names its objects.
	AttributePrefix string
	// InPlace rewrites the same files.
	InPlace bool
	// Rewritten is called with each file that was rewritten in place, and its descriptor; nil: nobody is.
	Rewritten func(path string, file int) `json:"-"`
	// Removing is called with the descriptor of each file of a superseded generation before its last link goes: whoever has
	// it open can go on opening it by that. nil: nobody is.
	Removing func(file int) `json:"-"`
}

// Writer writes one volume, over and over. It remembers digests of what it last wrote, never the content. It is for
// use by one goroutine at a time, and for one directory during its life.
type Writer struct {
	opts   Options
	memory memory
}

// New returns a Writer that knows nothing yet of the directory: its first Write reads the files that are there.
func New(opts Options) *Writer { return &Writer{opts: opts} }

// Result tells what a Write did.
type Result struct {
	// Changed is true when anything was changed of what users see.
	Changed bool
	// Generation is the name of the generation that ..data points at.
	Generation string
	// Files is how many files were written, and Bytes the length of their contents in bytes; Linked is how many
	// were hard-linked from the generation before, as nothing about them changed.
	Files, Linked int
	Bytes         int64
}

// Write makes dir show tree, and puts right whatever it finds amiss there on the way. Where the present generation has
// a file just so, that is taken over; where nothing differs, nothing is touched. One rename changes the files and the
// record; where nothing but the Record differs, the present generation gets the new one. The root of dir gets the
// tree's directory mode and owner.
//
// In place, each file that changes is rewritten and keeps its inode, new files appear whole, and a file that the tree
// lacks becomes empty and stays. All new files are complete and all room is reserved before the first change; the
// generation carries the new Record before the first byte is rewritten.
//
// An error before the first change leaves what users see as it was. A later one comes with a Result whose Changed is
// true. After any error, or when the process was killed, the next Write repairs. A full file system is unix.ENOSPC to
// errors.Is: before it fails, superseded generations go, and what an in-place write has emptied. A cancelled ctx is
// heeded only before the first change, and is ctx.Err() then.
func (w *Writer) Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (Result, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Result{}, err
	}
	defer root.Close()
	for room := present; ; room++ {
		result, err := w.write(ctx, int(root.Fd()), tree, room)
		if result.Changed || err == nil {
			return result, err
		}
		if room == all || !errors.Is(err, unix.ENOSPC) {
			return Result{}, err
		}
	}
}

// room says what goes for a write to find room: nothing, what nobody needs, or all that can.
type room int

const (
	present room = iota
	unneeded
	all
)

// update is one Write.
type update struct {
	opts Options
	*listing
	*shape
	root int
	tree *volume.Payload
	// old is the present generation, -1 if there is none.
	old int
	// next is the name of a directory for what nobody sees yet. As a leftover it is one of a generation.
	next string
	// files says of each of the tree's files what is to be, and what there is.
	files []fileState
	// emptied are the directories that have nothing but files that the tree lacks.
	emptied []string
	// torn says that the record is to have tornMark.
	torn   bool
	result Result
}

// fileState is what is to be of a file, and what the present generation has of it.
type fileState struct {
	known
	have have
}

type have byte

const (
	absent  have = iota // no regular file
	differs             // it has another content, mode, owner or attribute
	equal
)

// Comparison is what Compare finds.
type Comparison struct {
	// Whole says that there is a present generation, and that neither a link to its files nor a directory for mounts is missing.
	Whole bool
	// Same says that a Write would change nothing but the Record.
	Same bool
	// Differ are the paths of the tree at which dir shows another file, or none.
	Differ []string
}

// Compare says whether dir shows tree already, whatever its Record. It changes nothing.
func (w *Writer) Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (found Comparison, err error) {
	root, err := openRoot(dir)
	if err != nil {
		return found, err
	}
	defer root.Close()
	u, err := w.begin(int(root.Fd()), tree)
	if err != nil {
		return found, err
	}
	defer u.end()
	if found.Whole, err = u.isLinked(); err != nil {
		return found, err
	}
	u.describe()
	found.Same, err = u.compare(ctx, w.memory)
	found.Same = found.Same && found.Whole
	for i := range u.files {
		if u.files[i].have != equal {
			found.Differ = append(found.Differ, tree.Files[i].Path)
		}
	}
	return found, err
}

// isLinked says whether there is a present generation with links to all that is in it.
func (u *update) isLinked() (bool, error) {
	if u.old < 0 {
		return false, nil
	}
	entries, err := readDir(u.old, ".")
	if err != nil {
		return false, fmt.Errorf("list the present generation: %w", err)
	}
	for _, e := range entries {
		if target, err := readLink(u.root, e.Name()); err != nil || target != linkPrefix+e.Name() {
			return false, nil //nolint:nilerr // a link that can't be read is none
		}
	}
	return u.hasDirectories(), nil
}

// begin looks at a volume's root.
func (w *Writer) begin(root int, tree *volume.Payload) (u *update, err error) {
	u = &update{opts: w.opts, root: root, tree: tree, old: -1}
	if u.shape, err = shapeOf(tree); err != nil {
		return nil, err
	}
	if len(tree.Inner) > 0 && !w.opts.InPlace {
		return nil, fmt.Errorf("path %q: a directory for mounts in a generation needs one that is written in place", tree.Inner[0])
	}
	if u.listing, err = list(root); err != nil {
		return nil, err
	}
	if u.current != "" {
		if u.old, err = openAt(root, u.current, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return nil, fmt.Errorf("open the present generation: %w", err)
		}
	}
	return u, nil
}

func (u *update) end() {
	if u.old >= 0 {
		unix.Close(u.old)
	}
}

// write is one try, with so much removed for room:
//
//  1. Look at the root: what is present, what is superseded, what an interrupted write has left.
//  2. Remove leftovers; where there was no room, superseded generations too.
//  3. Compare the present generation with the tree: mode, owner, attribute, content.
//  4. In place, rewrite what differs. Otherwise, if something differs, build the next generation, link what is equal, and
//     switch ..data to it. If nothing differs, renew the record.
//  5. Make the links that users see, drop those that the tree lacks, and make the directories for mounts below the volume.
//  6. Remember what was written.
func (w *Writer) write(ctx context.Context, root int, tree *volume.Payload, room room) (_ Result, err error) {
	u, err := w.begin(root, tree) // 1
	if err != nil {
		return Result{}, err
	}
	defer u.end()
	if room > present { // 2; what can't be removed is in nobody's way, unless there is no room
		_, _ = u.prune(root, nil, u.opts.Removing)
	} else {
		_ = removeAll(root, u.unfinished...)
	}
	u.next = nameAfter(u.current)
	known := w.memory
	w.memory = memory{}
	u.describe()
	same, err := u.compare(ctx, known) // 3
	switch {                           // 4
	case err != nil:
	case u.opts.InPlace && u.current != "":
		err = u.rewrite(ctx, room)
	case same:
		err = u.renew()
	default:
		err = u.replace(ctx)
	}
	if err == nil { // 5
		err = errors.Join(u.makeLinks(), u.dropLinks(), u.makeDirectories())
	}
	if err == nil { // 6
		w.memory = u.remember(known)
	}
	return u.result, err
}

// renew gives the present generation, which has all files, the tree's record.
func (u *update) renew() error {
	u.result.Generation = u.current
	if u.missing() > 0 {
		if err := u.reserve(u.root, 0); err != nil {
			return err
		}
	}
	if err := setDir(u.root, ".", dirAttrs(u.tree), widen); err != nil {
		return err
	}
	return u.renewRecord()
}

// describe says what is to be of each file. Most files of a tree name the same objects, and share the text.
func (u *update) describe() {
	for i := range u.tree.Files {
		f := &u.tree.Files[i]
		state := fileState{known: known{attrs: fileAttrs(u.tree, f), size: len(f.Data)}}
		if !f.Keep {
			state.sum = sha256.Sum256(f.Data)
		}
		if i > 0 && slices.Equal(u.tree.Files[i-1].Refs, f.Refs) {
			state.refs = u.files[i-1].refs
		} else if u.opts.AttributePrefix != "" {
			state.refs = encodeRefs(f.Refs)
		}
		u.files = append(u.files, state)
	}
}
