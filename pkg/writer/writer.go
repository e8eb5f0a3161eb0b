// Package writer makes a directory show a tree of files.
//
// It owns the layout inside a volume: the generations, the ..data link that selects one of them, the links that users see, and the repair
// of what an interrupted write left. Everything is done relative to the directory handle that it receives. It must not know where the
// content comes from, how the directory is mounted, or who reads it. Its errors never hold contents.
//
// The layout is the one of the kubelet's own volumes:
//
//	..2006_01_02_15_04_05.1234567890001/   a generation: the files themselves
//	..data -> ..2006_01_02_15_04_05.1234567890001
//	key -> ..data/key
//	conf -> ..data/conf
//
// The names of generations sort in the order of the generations. A generation carries the record of its tree as an extended attribute, and
// each file carries the names of its objects, so Withdraw needs nothing else. No state is kept outside the volume.
//
// By default readers see all of one version or all of the next. A generation never changes once ..data points to it, except by a Withdraw
// that has no room for another one. A reader may still use a generation after ..data has switched, so it stays until Prune, unless there is
// no room for it.
//
// With Options.InPlace, a process that holds a file sees each change of it, for example a container that mounts one key with subPath. There
// is only one generation, and its files are rewritten. A reader may see a half-written file, or files of two versions. The file of a
// removed key stays and is empty.
//
// Somebody else may write to a volume too: a container with the node's CAP_SYS_ADMIN. That can delay the updates of this volume, and do
// nothing else: no link is followed, and no descriptor is held for foreign files.
package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// Options are the options of a Writer. The zero value is valid.
type Options struct {
	// AttributePrefix is the prefix of the names of extended attributes, such as "trusted.refvol.". If it is "", no record is kept, and
	// files don't name their objects.
	AttributePrefix string
	// InPlace makes the Writer rewrite the same files.
	InPlace bool
	// Rewritten is called with the path and a descriptor of each file that was rewritten in place. It may be nil.
	Rewritten func(path string, file int) `json:"-"`
	// Removing is called with a descriptor of each file of a superseded generation before its last link is removed. Processes that have the
	// file open can still open it again through their descriptor. It may be nil.
	Removing func(file int) `json:"-"`
	// Step is called before each change that readers of the directory may see, with a few words about the change. If the process ends
	// there, the directory stays as it is then. It may be nil.
	Step func(change string) `json:"-"`
}

// step calls Options.Step.
func (o *Options) step(change string) {
	if o.Step != nil {
		o.Step(change)
	}
}

// Writer writes one volume again and again. It remembers digests of what it last wrote, never the content. It may be used by one goroutine
// at a time, and for one directory during its life.
type Writer struct {
	opts   Options
	memory memory
}

// New returns a Writer that does not know the directory yet. Its first Write reads the existing files.
func New(opts Options) *Writer { return &Writer{opts: opts} }

// Result says what a Write did.
type Result struct {
	// Changed means that something changed that users can see.
	Changed bool
	// Generation is the name of the generation that ..data points to.
	Generation string
	// Files is the number of files that were written, and Bytes the length of their contents in bytes. Linked is the number of unchanged
	// files that were hard-linked from the last generation.
	Files, Linked int
	Bytes         int64
}

// Write makes dir show tree, and repairs what it finds damaged there. An unchanged file of the present generation is reused. If nothing
// differs, nothing is changed. One rename switches the files and the record together. If only the Record differs, it is written to the
// present generation. The root of dir gets the tree's directory mode and owner.
//
// With InPlace, each changed file is rewritten and keeps its inode, new files appear complete, and a file that is not in the tree becomes
// empty and stays. All new files are complete and all space is reserved before the first change. The generation carries the new Record
// before the first byte is rewritten.
//
// An error before the first change leaves everything visible as it was. After a later error, Result.Changed is true. After any error, or if
// the process was killed, the next Write repairs the volume. If the file system is full, the error wraps unix.ENOSPC; before that,
// superseded generations and emptied files are removed. The end of ctx counts only before the first change, and the error then wraps
// ctx.Err().
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

// room says what a write may remove to find room: nothing, what nobody needs, or everything possible.
type room int

const (
	present room = iota
	unneeded
	all
)

// update is the state of one Write.
type update struct {
	opts Options
	*listing
	*shape
	root int
	tree *volume.Payload
	// old is the descriptor of the present generation, or noDescriptor.
	old int
	// next is the name of a directory for data that is not visible yet. A leftover of that name counts as an unfinished generation.
	next string
	// files has, for each file of the tree, the wanted and the present state.
	files []fileState
	// emptied are the directories with only files that are not in the tree.
	emptied []string
	// torn means that the record gets tornMark.
	torn   bool
	result Result
}

// fileState is the wanted state of a file, and how the present generation compares.
type fileState struct {
	known
	have have
}

type have byte

const (
	absent  have = iota // not a regular file
	differs             // another content, mode, owner or attribute
	equal
)

// Comparison is the result of Compare.
type Comparison struct {
	// Whole means that there is a present generation, and that no link to its files and no directory for mounts is missing.
	Whole bool
	// Same means that a Write would change nothing except the Record.
	Same bool
	// Differ are the paths of the tree at which dir shows another file, or no file.
	Differ []string
}

// Compare compares what dir shows with tree, ignoring the Record. It changes nothing.
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
	defer u.close()
	if found.Whole, err = u.isLinked(); err != nil {
		return found, err
	}
	u.describe(w.memory)
	found.Same, err = u.compare(ctx, w.memory)
	found.Same = found.Same && found.Whole
	for i := range u.files {
		if u.files[i].have != equal {
			found.Differ = append(found.Differ, tree.Files[i].Path)
		}
	}
	return found, err
}

// isLinked reports whether there is a present generation, with links to all its entries and with all directories for mounts.
func (u *update) isLinked() (bool, error) {
	if u.old == noDescriptor {
		return false, nil
	}
	entries, err := readDir(u.old, ".")
	if err != nil {
		return false, fmt.Errorf("list the present generation: %w", err)
	}
	for _, e := range entries {
		if target, err := readLink(u.root, e.Name()); err != nil || target != linkPrefix+e.Name() {
			return false, nil //nolint:nilerr // a link that cannot be read counts as missing
		}
	}
	return u.hasDirectories(), nil
}

// begin reads a volume's root.
func (w *Writer) begin(root int, tree *volume.Payload) (u *update, err error) {
	u = &update{opts: w.opts, root: root, tree: tree, old: noDescriptor}
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

func (u *update) close() {
	if u.old != noDescriptor {
		unix.Close(u.old)
	}
}

// write is one try of Write. room says what it may remove:
//
//  1. Read the root: what is present, what is superseded, what an interrupted write has left.
//  2. Remove leftovers. If there was no room, remove superseded generations too.
//  3. Compare the present generation with the tree: mode, owner, attribute, content.
//  4. With InPlace, rewrite what differs. Otherwise, if something differs, build the next generation, link what is equal, and
//     switch ..data to it. If nothing differs, renew the record.
//  5. Make the links that users see, remove those that are not of the tree, and make the directories for mounts.
//  6. Remember what was written.
func (w *Writer) write(ctx context.Context, root int, tree *volume.Payload, room room) (_ Result, err error) {
	u, err := w.begin(root, tree) // 1
	if err != nil {
		return Result{}, err
	}
	defer u.close()
	if room > present { // 2; a leftover that cannot be removed does no harm, unless there is no room
		_, _ = u.prune(root, nil, u.opts.Removing)
	} else {
		_ = removeAll(root, u.unfinished...)
	}
	u.next = nameAfter(u.current)
	known := w.memory
	w.memory = memory{}
	u.describe(known)
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

// renew writes the tree's record to the present generation, which has all files already.
func (u *update) renew() error {
	u.result.Generation = u.current
	if u.countMissing() > 0 {
		if err := u.reserve(u.root, 0); err != nil {
			return err
		}
	}
	if err := setDir(u.root, ".", dirAttrs(u.tree), widen); err != nil {
		return err
	}
	return u.renewRecord()
}

// describe sets the wanted state of each file. Most files of a tree have the same objects, so they share that text.
func (u *update) describe(before memory) {
	for i := range u.tree.Files {
		f := &u.tree.Files[i]
		state := fileState{known: known{attrs: fileAttrs(u.tree, f), size: len(f.Data)}}
		if !f.Keep {
			had, _ := before.of(f.Path)
			state.sum, state.data = digest(f.Data, had)
		}
		if i > 0 && slices.Equal(u.tree.Files[i-1].Refs, f.Refs) {
			state.refs = u.files[i-1].refs
		} else if u.opts.AttributePrefix != "" {
			state.refs = encodeRefs(f.Refs)
		}
		u.files = append(u.files, state)
	}
}
