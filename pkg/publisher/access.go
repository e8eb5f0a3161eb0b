package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// errUnreviewed is why a volume waits for the answer whether it may have its objects of
// other namespaces.
var errUnreviewed = errors.New("access to other namespaces could not be reviewed")

// access is what is known of a volume's rights to objects of other namespaces. The lock of
// the contents guards it.
type access struct {
	errand
	// known says that refused holds all objects that the pod may not have; until then
	// nothing is written.
	known   bool
	refused map[volume.Ref]bool
}

// authorize returns nil once the pod of a new volume may have all its objects of other
// namespaces. A refusal is final, and has the same text whether the object exists or not:
// nothing was asked of it yet. An error of the review is no refusal; it is tried again for
// as long as a publish may wait.
func (p *Publisher) authorize(ctx context.Context, v *published) error {
	ctx, cancel := context.WithDeadline(ctx, v.deadline)
	defer cancel()
	backoff := refreshBackoff()
	for {
		refused, err := p.review(ctx, v)
		if len(refused) > 0 {
			return refusal(v, refused)
		}
		if err == nil {
			v.contents.access.known = true
			return nil
		}
		err = fail(ReasonUnavailable, "%w: %w", errUnreviewed, err)
		retry := time.NewTimer(backoff.Step())
		select {
		case <-retry.C:
		case <-p.stopping:
			retry.Stop()
			return err
		case <-ctx.Done():
			retry.Stop()
			return err
		}
	}
}

// review asks for each object of another namespace whether the pod may have it, and
// returns those that it may not. The error joins those of the questions without answer.
func (p *Publisher) review(ctx context.Context, v *published) (map[volume.Ref]bool, error) {
	refused := map[volume.Ref]bool{}
	var errs []error
	for _, use := range v.across {
		allowed := false
		var err error
		if p.opts.Access != nil { // else they were switched off since the publish
			allowed, err = p.opts.Access.Allowed(ctx, v.request.Pod, use.Ref)
		}
		switch {
		case err != nil:
			errs = append(errs, err)
		case !allowed:
			refused[use.Ref] = true
		}
	}
	return refused, errors.Join(errs...)
}

// reviewLater has the rights of a live volume reviewed if that is due, or was never done
// by this process. Until the answer comes, the last one counts; an error makes the rights
// unknown, which leaves the files as they are. The caller holds the lock of the contents.
func (p *Publisher) reviewLater(ctx context.Context, v *published, due bool) error {
	a := &v.contents.access
	if len(v.across) == 0 || a.known && !due {
		return nil
	}
	err := p.later(ctx, v, &a.errand, errUnreviewed, func(ctx context.Context) func() error {
		refused, err := p.review(ctx, v)
		return func() error {
			a.known = err == nil
			if err != nil {
				return fail(ReasonUnavailable, "%w", err)
			}
			p.refuse(v, refused)
			return nil
		}
	})
	if a.known {
		return nil
	}
	return err
}

// refuse notes which objects a live volume may not have, and has the others only reach
// the volume from now on. The caller holds the lock of the contents.
func (p *Publisher) refuse(v *published, refused map[volume.Ref]bool) {
	if maps.Equal(refused, v.contents.access.refused) {
		return
	}
	v.contents.access.refused = refused
	allowed := slices.DeleteFunc(slices.Clone(v.refs), func(ref volume.Ref) bool { return refused[ref] })
	p.opts.Objects.RegisterPod(v.request.Pod, v.request.VolumeID, allowed)
}

// refusal returns an error that names each object that the pod may not have, nil if there
// is none.
func refusal(v *published, refused map[volume.Ref]bool) error {
	var texts []string
	for _, use := range v.across {
		if refused[use.Ref] {
			texts = append(texts, fmt.Sprintf("%s: Forbidden: service account %q of the pod may not get %s; whoever owns namespace %q consents by a Role and a RoleBinding there",
				use.Field, v.request.Pod.ServiceAccount, use.Ref, use.Ref.Namespace))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return fail(ReasonForbidden, "%w", &refusedError{strings.Join(texts, "; ")})
}

// refusedError names the objects of other namespaces that a pod may not have.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }
