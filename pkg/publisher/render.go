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
	isMounted, spec := v.entry.isMounted(), v.binding.spec
	if f := v.name(got); f != nil {
		return nil, f
	}
	var err error
	crowd := v.shared.inTurn(ctx, func() {
		next, err = payload.Render(spec.resolved, got.objects, payload.Options{
			FSGroup:        v.binding.request.FSGroup,
			Refused:        got.refused,
			Held:           got.held,
			Pod:            v.binding.request.Pod,
			NodeName:       v.shared.opts.NodeName,
			MaxFiles:       int(max(v.shared.limits.Files, room.FilesOf(v.entry.room.Needed()))), // a mounted volume may keep as many files as it has
			MaxDirectories: int(max(v.shared.limits.Inodes, room.FilesOf(v.entry.room.Needed()))),
			ForgiveDeleted: isMounted && spec.RemoveDeleted(),
		})
	})
	var missing *payload.MissingError
	switch {
	case crowd != nil:
		return nil, crowd
	case errors.As(err, new(*payload.TooLargeError)):
		return nil, final(ReasonTooLarge, "%w", err)
	case errors.As(err, &missing):
		return nil, v.missing(missing)
	case errors.As(err, new(*payload.UnfitError)):
		f := final(ReasonInvalid, "%w", err)
		f.waits, f.kind = true, err.Error()
		return nil, f
	case err != nil:
		return nil, final(ReasonInvalid, "%w", err)
	}
	next.Payload.Record = got.at.Encode()
	return next, nil
}

// name counts what the files will name with the keys of whole objects, before their paths are made. A volume of an earlier process may name
// what its files do, whatever that is, so nothing is refused until this process knows them.
func (v *vol) name(got *answers) *failure {
	n := v.binding.spec.names.Plus(payload.Names(v.binding.spec.resolved, got.objects))
	if !v.entry.isMounted() || v.files.isCounted {
		if err := v.entry.room.CheckNames(n); err != nil {
			return final(ReasonInvalid, "%w", err)
		}
	}
	v.entry.room.Name(n)
	v.files.isCounted = true
	return nil
}

// missing returns the failure for objects or keys that don't exist. A change can end it.
func (v *vol) missing(err *payload.MissingError) *failure {
	f := final(ReasonNotFound, "%w", err)
	f.waits, f.event, f.kind = true, eventRefNotFound, err.Error()
	switch first := err.Missing[0]; {
	case first.Key != "":
		f.event = eventRefKeyNotFound
	case v.files.has(first.Ref):
		f.event = eventRefDeleted
	}
	return f
}
