package publisher

import (
	"context"
	"errors"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/room"
)

// render returns what the volume is to show. It waits for one of a few places, which limits the memory. While the volume is mounted, its
// spec decides what happens to files of a deleted object. Before that, a missing required object never existed.
func (v *vol) render(ctx context.Context, got *binding.Answers) (next *payload.Rendering, f *failure.Failure) {
	isMounted, spec := v.isMounted, v.binding.Spec()
	if f := v.binding.Count(got, v.isMounted); f != nil {
		return nil, f
	}
	var err error
	crowd := v.bindings.InTurn(ctx, func() {
		next, err = payload.Render(spec.Resolved, got.Objects, payload.Options{
			FSGroup:        v.binding.Request().FSGroup,
			Refused:        got.Refused,
			Held:           got.Held,
			Pod:            v.binding.Request().Pod,
			NodeName:       v.opts.NodeName,
			MaxFiles:       int(max(v.limits.Files, room.FilesOf(v.room.Needed()))), // a mounted volume may keep as many files as it has
			MaxDirectories: int(max(v.limits.Inodes, room.FilesOf(v.room.Needed()))),
			ForgiveDeleted: isMounted && spec.RemoveDeleted(),
		})
	})
	var missing *payload.MissingError
	switch {
	case crowd != nil:
		return nil, crowd
	case errors.As(err, new(*payload.TooLargeError)):
		return nil, failure.Final(failure.ReasonTooLarge, err)
	case errors.As(err, &missing):
		return nil, v.missing(missing)
	case errors.As(err, new(*payload.UnfitError)):
		f := failure.Final(failure.ReasonInvalid, err)
		f.Waits, f.Key = true, err.Error()
		return nil, f
	case err != nil:
		return nil, failure.Final(failure.ReasonInvalid, err)
	}
	next.Payload.Record = got.Record().Encode()
	return next, nil
}

// missing returns the failure for objects or keys that don't exist. A change can end it.
func (v *vol) missing(err *payload.MissingError) *failure.Failure {
	f := failure.Final(failure.ReasonNotFound, err)
	f.Waits, f.Event, f.Key = true, failure.RefNotFound, err.Error()
	switch first := err.Missing[0]; {
	case first.Key != "":
		f.Event = failure.RefKeyNotFound
	case v.files.has(first.Ref):
		f.Event = failure.RefDeleted
	}
	return f
}
