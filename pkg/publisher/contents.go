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

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// treeWriter makes a directory show a tree; *writer.Writer is one.
type treeWriter interface {
	Write(ctx context.Context, dir *os.Root, tree *volume.Tree) (writer.Result, error)
	// Withdraw takes away the files that name one of the objects.
	Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, record string) (writer.Result, error)
}

// contents is what the files of one volume show.
type contents struct {
	writer treeWriter
	// kept is a handle on the volume's mount, nil for none.
	kept Mount
	// told is what the pod's author was last told of the variables that the env files lack.
	told string
	// shown is what the files show, by this process or by the volume's record.
	shown record.Versions
	// withdrawn holds the refused objects of which this process has seen to it that no file is there.
	withdrawn map[volume.Ref]bool
	// proven says that this process wrote or compared the files at shown.
	proven bool
	// switched is when the files were last changed.
	switched time.Time
	// pruneAt is when the next superseded generation has had its time; zero for none.
	pruneAt time.Time
	// leftover is why one could not be removed when that was last tried. It ails the volume until it is known to
	// be gone, whatever else is written meanwhile.
	leftover error
	// changedAt is when the first change came that the files don't show yet; zero for none.
	changedAt time.Time
}

const (
	// readTime after a switch ..data does not switch again: so where there is no room for earlier
	// generations, readers have that long. A change that comes alone is never held up; of a burst, the
	// latest state counts.
	readTime = 25 * time.Millisecond
	// pruneTime after it was superseded a generation is removed: what it
	// shows may have been revoked.
	pruneTime = time.Second
)

// prepared is what a volume is to show next, rendered of answers.
type prepared struct {
	*payload.Rendering
	got answers
}

// prepare renders what a volume is to show, and looks whether there is room for it. It waits for the memory that a
// render takes. The caller holds the lock of the pod.
func (v *published) prepare(ctx context.Context, got answers, live bool) (*prepared, error) {
	next, err := v.renderInTurn(ctx, got, live)
	if err != nil {
		return nil, err
	}
	if err := v.checkRoom(ctx, next.Tree, live); err != nil {
		v.p.opts.Observer.Wrote(false, 0, err)
		return nil, err
	}
	return next, nil
}

func (v *published) renderInTurn(ctx context.Context, got answers, live bool) (*prepared, error) {
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
	return &prepared{rendering, got}, nil
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
func (v *published) write(ctx context.Context, mnt Mount, next *prepared, mounted bool) (changed bool, err error) {
	got := next.got
	var result writer.Result
	defer func() { v.p.opts.Observer.Wrote(result.Changed, result.Bytes, err) }()
	v.contents.proven = false
	result, err = v.contents.writer.Write(ctx, mnt.Root(), next.Tree)
	if result.Changed {
		v.contents.switchedNow(mounted)
	}
	switch {
	case err == nil:
		v.contents.shown, v.contents.withdrawn = got.at, got.refused
		v.condition.show(got.at)
	case result.Changed:
		// Some files may still be those of before, where they are rewritten in place. So nothing older
		// may follow, and the status goes on to say what was shown by all files.
		v.contents.shown, v.contents.withdrawn = got.at, nil
	}
	if err != nil {
		return result.Changed, errors.Join(fmt.Errorf("write the files of volume %s: %w", v.request.VolumeID, err), v.measure(mnt))
	}
	v.contents.proven = true
	if result.Changed {
		v.contents.showed(v.p.opts.Observer)
	}
	if err := v.settle(mnt, mounted); err != nil {
		return result.Changed, err
	}
	told := v.contents.told
	v.contents.told = skippedText(next.Skipped, v.leftOut)
	if v.contents.told != told && v.contents.told != "" {
		v.p.opts.Events.Warn(v.request.Pod, eventInvalidNames, v.contents.told)
	}
	return result.Changed, nil
}

// switchedNow notes that files have changed: where they are visible, their readers then have their time.
func (c *contents) switchedNow(mounted bool) {
	if !mounted {
		return
	}
	c.switched = time.Now()
	if c.pruneAt.IsZero() {
		c.pruneAt = c.switched.Add(pruneTime)
	}
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
