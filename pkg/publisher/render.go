package publisher

import (
	"context"
	"errors"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/room"
)

// render returns what the volume is to show. It waits for one of a few places, which limits the memory. While the volume is mounted, its
// spec decides what happens to files of a deleted object. Before that, a missing required object never existed.
func (v *vol) render(ctx context.Context, got *answers) (next *payload.Rendering, f *failure) {
	isMounted, spec := v.isMounted, v.binding.spec
	if f := v.count(got); f != nil {
		return nil, f
	}
	var err error
	crowd := v.inTurn(ctx, func() {
		next, err = payload.Render(spec.resolved, got.objects, payload.Options{
			FSGroup:        v.binding.request.FSGroup,
			Refused:        got.refused,
			Held:           got.held,
			Pod:            v.binding.request.Pod,
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
		return nil, final(ReasonTooLarge, err)
	case errors.As(err, &missing):
		return nil, v.missing(missing)
	case errors.As(err, new(*payload.UnfitError)):
		f := final(ReasonInvalid, err)
		f.waits, f.key = true, err.Error()
		return nil, f
	case err != nil:
		return nil, final(ReasonInvalid, err)
	}
	next.Payload.Record = got.record().Encode()
	return next, nil
}

// count counts what the files will name with the keys of whole objects, before their paths are made. A volume of an earlier process may name
// what its files do, whatever that is, so nothing is refused until this process knows them.
func (v *vol) count(got *answers) *failure {
	n := v.binding.spec.names.Plus(payload.Names(v.binding.spec.resolved, got.objects))
	if !v.isMounted || v.binding.spec.isCounted {
		if err := v.room.CheckNames(n); err != nil {
			return final(ReasonInvalid, err)
		}
	}
	v.room.Name(n)
	v.binding.spec.isCounted = true
	return nil
}

// missing returns the failure for objects or keys that don't exist. A change can end it.
func (v *vol) missing(err *payload.MissingError) *failure {
	f := final(ReasonNotFound, err)
	f.waits, f.event, f.key = true, eventRefNotFound, err.Error()
	switch first := err.Missing[0]; {
	case first.Key != "":
		f.event = eventRefKeyNotFound
	case v.files.has(first.Ref):
		f.event = eventRefDeleted
	}
	return f
}
