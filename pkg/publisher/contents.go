package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// treeWriter makes a directory show a tree; *writer.Writer and *writer.InPlace are.
type treeWriter interface {
	Write(ctx context.Context, dir *os.Root, tree *volume.Tree) (writer.Result, error)
	Stale() bool
	Prune(dir *os.Root) error
	// Withdraw takes away the files that name one of the objects.
	Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool) (writer.Result, error)
	// Shows returns which of the objects the files name.
	Shows(ctx context.Context, dir *os.Root, refs map[volume.Ref]bool) (map[volume.Ref]bool, error)
	// Size returns what the files take.
	Size(ctx context.Context, dir *os.Root) (writer.Footprint, error)
}

// contents is what the files of one volume show, and the lock of who writes them.
type contents struct {
	mu     sync.Mutex
	writer treeWriter
	// told is what the pod's author was last told of the variables that the env files lack.
	told   string
	proof  proof
	access access
	place  place
	// shown is what the files show, by this process or by the volume's record.
	shown record.Versions
	// withdrawn holds objects that the pod may not have and of which no file is there, by what
	// this process did.
	withdrawn map[volume.Ref]bool
	// proven says that this process wrote or compared the files at shown.
	proven bool
	// switched is when ..data was last switched from one generation to another.
	switched time.Time
	// leftover is why an earlier generation could not be removed when that was last tried. It
	// ails the volume until it is known to be gone, whatever else is written meanwhile.
	leftover error
	// handle is kept from a switch to the prune after it.
	handle handle
	// gone says that the volume was unpublished or dropped; nothing may be written.
	gone bool
}

const (
	// readTime is what a reader may take from opening ..data to opening the last
	// file: within it ..data does not switch again, so that the generation before
	// stays. A change that comes alone is never held up; of a burst, the latest
	// state counts.
	readTime = 25 * time.Millisecond
	// pruneTime after the last switch the generation before is removed: what it
	// shows may have been revoked.
	pruneTime = time.Second
)

// snapshot returns the newest known state of a volume's objects, without those that the
// pod may not have. The caller holds the lock of the contents. The error wraps
// that of every object whose state is not known, and has a reason if one of them may
// not be read.
func (p *Publisher) snapshot(v *published) (payload.Objects, record.Versions, error) {
	objects, at := payload.Objects{}, record.Versions{}
	var errs []error
	for _, ref := range v.refs {
		if v.contents.access.refused[ref] {
			at[ref] = volume.Version{}
			continue
		}
		object, err := p.opts.Objects.GetObject(v.request.Pod, ref)
		switch {
		case err == nil:
			objects[ref], at[ref] = object, object.Version
		case isAbsent(err):
			at[ref] = volume.Version{}
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err) && p.opts.Objects.Denied(v.request.Pod, ref) != nil:
			// Told apart here, object by object: among the joined errors only the
			// first API error would be seen. That a token is not accepted may pass, until
			// it is a denial.
			errs = append(errs, fail(ReasonForbidden, "%w", err))
		default:
			errs = append(errs, err)
		}
	}
	return objects, at, errors.Join(errs...)
}

// isAbsent says whether an error of GetObject tells that the object does not exist. Where it is
// not known, it was the request that met a 404, of whoever stands between.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !errors.Is(err, manager.ErrNotSynced)
}

// denied returns why objects of a volume can't be kept current any more; nil while they
// can. The caller holds the lock of the contents.
func (p *Publisher) denied(v *published) error {
	var errs []error
	for _, ref := range v.refs {
		if v.contents.access.refused[ref] {
			continue // another volume's
		}
		switch err := p.opts.Objects.Denied(v.request.Pod, ref); {
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			errs = append(errs, fail(ReasonForbidden, "%w", err))
		case err != nil:
			errs = append(errs, fmt.Errorf("%w: %w", errStale, err))
		}
	}
	return errors.Join(errs...)
}

// impaired returns which objects a live volume does not show because its pod may not have
// them and, where its files are what they can be, which of those can't be kept current.
func (p *Publisher) impaired(v *published, updated bool) error {
	v.contents.mu.Lock()
	defer v.contents.mu.Unlock()
	err := p.refusal(v, v.contents.access.refused)
	if updated {
		err = errors.Join(err, p.denied(v))
	}
	return err
}

// newWriter returns the writer of a volume of a spec.
func newWriter(spec *volume.Spec, opts writer.Options) treeWriter {
	if spec.InPlace() {
		return writer.NewInPlace(opts)
	}
	return writer.New(opts)
}

// render returns what a volume is to show of a snapshot. Once the volume is live, its
// spec says what a deleted object means; before that, a required object that does not
// exist was never there. The caller holds the lock of the contents.
func (p *Publisher) render(v *published, objects payload.Objects, live bool) (*payload.Rendering, error) {
	opts := p.renderOptions(v)
	opts.ForgiveDeleted = live && v.spec.RemoveDeleted()
	return payload.Render(v.resolved, objects, opts)
}

func (p *Publisher) renderOptions(v *published) payload.Options {
	return payload.Options{
		FSGroup:  v.request.FSGroup,
		Refused:  v.contents.access.refused,
		Consent:  v.consent,
		Pod:      v.request.Pod,
		NodeName: p.opts.NodeName,
	}
}

// write makes a volume's files show a rendering, with a record of at which versions, through
// a handle on its mount. The caller holds the lock of the contents. On an error the files
// stay as they were, or are current and some link is not; another write mends that.
func (p *Publisher) write(ctx context.Context, v *published, mnt Mount, shown *payload.Rendering, at record.Versions) error {
	undo, err := p.makeRoom(ctx, v, mnt, shown.Tree)
	if err != nil {
		return err
	}
	v.contents.proven = false
	shown.Tree.Record = at.Encode()
	result, err := v.contents.writer.Write(ctx, mnt.Root(), shown.Tree)
	if result.Changed && v.contents.writer.Stale() {
		v.contents.switched = time.Now()
	}
	if err == nil || result.Changed {
		v.contents.shown, v.contents.withdrawn = at, v.contents.access.refused
	} else {
		undo()
	}
	if err != nil {
		return fmt.Errorf("write the files of volume %s: %w", v.request.VolumeID, err)
	}
	v.contents.proven = true
	told := v.contents.told
	v.contents.told = skippedText(shown.Skipped, v.leftOut)
	if v.contents.told != told && v.contents.told != "" {
		p.opts.Events.Warn(v.request.Pod, eventInvalidNames, v.contents.told)
	}
	return nil
}

// has says whether the files show an object.
func (c *contents) has(ref volume.Ref) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown[ref].UID != ""
}

// current says whether the files are known to show the objects at these versions.
func (c *contents) current(at record.Versions) bool {
	return c.proven && maps.Equal(c.shown, at)
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
