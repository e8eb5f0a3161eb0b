package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// treeWriter makes a directory show a tree; *writer.Writer and *writer.InPlace are.
type treeWriter interface {
	Write(ctx context.Context, dir *os.Root, tree *volume.Tree) (writer.Result, error)
	// Stale says whether an earlier generation is there, StaleSince since when the oldest is one.
	Stale() bool
	StaleSince() time.Time
	Prune(ctx context.Context, dir *os.Root, before time.Time) error
	// DropOldest removes what has been kept longest for readers alone; false if nothing is.
	DropOldest(ctx context.Context, dir *os.Root) (bool, error)
	// Withdraw takes away the files that name one of the objects and, if unnamed says so, those
	// that name none.
	Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, unnamed bool) (writer.Result, error)
	// Shows returns which of the objects the files name.
	Shows(ctx context.Context, dir *os.Root, refs map[volume.Ref]bool) (map[volume.Ref]bool, error)
	// Size returns what the files take.
	Size(ctx context.Context, dir *os.Root) (writer.Footprint, error)
}

// contents is what the files of one volume show.
type contents struct {
	writer treeWriter
	// told is what the pod's author was last told of the variables that the env files lack.
	told string
	// shown is what the files show, by this process or by the volume's record.
	shown record.Versions
	// named holds the objects that need consent and that files name.
	named map[volume.Ref]bool
	// unnamed holds those of which the record says that they are shown, while no file names them:
	// the files may be from before the pod needed a right to what is in its own namespace.
	unnamed map[volume.Ref]bool
	// withdrawn holds the refused objects of which this process has seen to it that no file
	// is there, and those whose files went with theirs.
	withdrawn map[volume.Ref]bool
	// proven says that this process wrote or compared the files at shown.
	proven bool
	// switched is when ..data was last switched from one generation to another.
	switched time.Time
	// overhead is how many inodes the volume takes beside those of its files.
	overhead int64
	// leftover is why an earlier generation could not be removed when that was last tried. It
	// ails the volume until it is known to be gone, whatever else is written meanwhile.
	leftover error
	// handle is kept for keepTime after a switch.
	handle handle
	// changedAt is when the first change came that the files don't show yet; zero for none.
	changedAt time.Time
}

const (
	// readTime after a switch ..data does not switch again: so where there is no room for earlier
	// generations, readers have that long, and of a burst those that are kept last for eight times as
	// long. A change that comes alone is never held up; of a burst, the latest state counts.
	readTime = 25 * time.Millisecond
	// pruneTime after it was superseded a generation is removed: what it
	// shows may have been revoked.
	pruneTime = time.Second
)

// answers are what is known of a volume's objects at one moment.
type answers struct {
	objects payload.Objects
	at      record.Versions
	// refused holds those that the pod may not have.
	refused map[volume.Ref]bool
	// unknown joins why the state of others is not known, stale why what is known of some
	// can't be kept current.
	unknown, stale error
	// pending says that answers which belong together were not all there yet.
	pending bool
}

// answers returns the present answers about a volume's objects. The caller holds the lock of
// the contents.
func (v *published) answers() answers {
	// Whether answers are due is asked before the answers: so none of those is overlooked.
	got := answers{objects: payload.Objects{}, at: record.Versions{}, refused: map[volume.Ref]bool{}, pending: v.registration.Pending()}
	var unknown, stale []error
	for _, ref := range v.refs {
		answer := v.registration.Get(ref)
		switch {
		case answer.State == access.Unknown:
			unknown = append(unknown, answer.Err)
			continue
		case answer.State == access.Refused && !answer.Confirmed && v.contents.named[ref]:
			// What no file shows can't be lost: that needs no confirmation.
			unknown = append(unknown, access.ErrPending)
			continue
		case answer.State == access.Refused:
			got.refused[ref] = true
		case answer.State == access.Present:
			got.objects[ref], got.at[ref] = answer.Object, answer.Object.Version
		}
		if answer.State != access.Present {
			got.at[ref] = volume.Version{}
		}
		if answer.Err != nil {
			stale = append(stale, answer.Err)
		}
	}
	got.unknown, got.stale = errors.Join(unknown...), errors.Join(stale...)
	return got
}

// prepared is what a volume is to show next, rendered of answers. takes is what it takes of the node's
// total, which is reserved.
type prepared struct {
	*payload.Rendering
	got   answers
	takes int64
}

// prepare renders what a volume is to show, and reserves its place in the node's total. It waits for the
// memory that a render takes. What is over a limit is rendered once more, after what is kept for readers
// has been removed: no tree stays in memory meanwhile. The caller holds the lock of the pod.
func (v *published) prepare(ctx context.Context, got answers, live bool) (*prepared, error) {
	next, err := v.renderReserved(ctx, got, live, writer.Footprint{})
	if err == nil || next == nil {
		return next, err
	}
	has, roomErr := v.makeRoom(ctx, next.takes, ReasonOf(err))
	if roomErr != nil || v.is(gone) {
		return nil, errors.Join(err, roomErr)
	}
	if next, err = v.renderReserved(ctx, got, live, has); err != nil {
		v.p.opts.Observer.Wrote(false, 0, err)
		return nil, err
	}
	return next, nil
}

// renderReserved is one try of prepare. has is what the files of the volume take. If the result is over
// a limit, it comes with the error, without its tree.
func (v *published) renderReserved(ctx context.Context, got answers, live bool, has writer.Footprint) (*prepared, error) {
	release, err := v.renderMemory(ctx, got, live)
	if err != nil {
		return nil, err
	}
	defer release()
	rendering, err := v.render(got, live)
	if err != nil {
		return nil, err
	}
	rendering.Tree.Record = got.at.Encode()
	v.contents.overhead = overhead(rendering.Tree.Record)
	size := writer.Measure(rendering.Tree)
	takes := memoryOf(size.Bytes, size.Inodes+v.contents.overhead)
	if err := v.reserve(size, takes, has); err != nil {
		return &prepared{takes: takes}, err
	}
	return &prepared{rendering, got, takes}, nil
}

// renderMemory waits for the memory of a render, which the caller releases. What the pod may not have
// goes at once: a withdrawal waits for no render.
func (v *published) renderMemory(ctx context.Context, got answers, live bool) (release func(), err error) {
	heap := payload.Heap(v.resolved, got.objects)
	if release := v.p.renders.tryAcquire(heap); release != nil {
		return release, nil
	}
	if live && v.contents.showsAny(got.refused) {
		if v.putOff(readTime) {
			return nil, errPutOff
		}
		if err := v.withdraw(ctx, got.refused); err != nil || v.is(gone) {
			return nil, cmp.Or(err, errPutOff)
		}
	}
	return v.p.renders.acquire(ctx, heap)
}

// render returns what a volume is to show of its objects. Once the volume is live, its
// spec says what a deleted object means; before that, a required object that does not
// exist was never there.
func (v *published) render(got answers, live bool) (*payload.Rendering, error) {
	rendering, err := payload.Render(v.resolved, got.objects, payload.Options{
		FSGroup:        v.request.FSGroup,
		Refused:        got.refused,
		Consent:        v.consent,
		Pod:            v.request.Pod,
		NodeName:       v.p.opts.NodeName,
		ForgiveDeleted: live && v.spec.RemoveDeleted(),
	})
	var missing *payload.MissingError
	var tooLarge *payload.TooLargeError
	switch {
	case errors.As(err, &tooLarge):
		err = fail(ReasonTooLarge, "%w", err)
	case err != nil && !errors.As(err, &missing):
		err = fail(ReasonInvalid, "%w", err)
	}
	return rendering, err
}

// write makes the volume's files show what is prepared, with a record of at which versions, through
// a handle on its mount. The caller holds the lock of the pod. On an error the files
// stay as they were, or are current and some link is not; another write mends that. changed says
// that files were changed.
func (v *published) write(ctx context.Context, mnt Mount, next *prepared) (changed bool, err error) {
	got := next.got
	var result writer.Result
	defer func() { v.p.opts.Observer.Wrote(result.Changed, result.Bytes, err) }()
	v.contents.proven = false
	result, err = v.contents.writer.Write(ctx, mnt.Root(), next.Tree)
	if result.Changed && v.contents.writer.Stale() {
		v.contents.switched = time.Now()
	}
	switch {
	case err == nil:
		v.contents.shown, v.contents.withdrawn = got.at, got.refused
		v.contents.named, v.contents.unnamed = namedIn(next.Tree), nil
		v.condition.show(got.at)
		v.setTree(next.takes)
	case result.Changed:
		// Some files may still be those of before, where they are rewritten in place. So nothing older
		// may follow, and the status goes on to say what was shown by all files.
		v.contents.shown = got.at
		v.contents.withdrawn = nil
		for ref := range namedIn(next.Tree) {
			v.contents.named[ref] = true
		}
	}
	if err != nil {
		return result.Changed, errors.Join(fmt.Errorf("write the files of volume %s: %w", v.request.VolumeID, err), v.measure(mnt))
	}
	v.contents.proven = true
	if result.Changed {
		v.contents.showed(v.p.opts.Observer)
	}
	if err := v.settleSize(ctx, mnt); err != nil {
		return result.Changed, err
	}
	told := v.contents.told
	v.contents.told = skippedText(next.Skipped, v.leftOut)
	if v.contents.told != told && v.contents.told != "" {
		v.p.opts.Events.Warn(v.request.Pod, eventInvalidNames, v.contents.told)
	}
	return result.Changed, nil
}

// namedIn returns the objects that a tree's files name.
func namedIn(tree *volume.Tree) map[volume.Ref]bool {
	named := map[volume.Ref]bool{}
	for i := range tree.Files {
		for _, ref := range tree.Files[i].Refs {
			named[ref] = true
		}
	}
	return named
}

// has says whether the files show, or showed, an object.
func (c *contents) has(ref volume.Ref) bool {
	return c.shown[ref].UID != ""
}

// isCurrent says whether the files are known to show the objects as they are.
func (c *contents) isCurrent(got answers) bool {
	return c.proven && maps.Equal(c.shown, got.at) && maps.Equal(c.withdrawn, got.refused)
}

// older returns an object whose version is older than what the files show of it. An
// API server may answer so after a restart of this process, while it catches up.
func (c *contents) older(at record.Versions) (volume.Ref, bool) {
	for ref, version := range at {
		shown := c.shown[ref]
		if shown.ResourceVersion == "" || version.ResourceVersion == "" {
			continue
		}
		order, err := resourceversion.CompareResourceVersion(version.ResourceVersion, shown.ResourceVersion)
		if err == nil && order < 0 {
			return ref, true
		}
	}
	return volume.Ref{}, false
}
