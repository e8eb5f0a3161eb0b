package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/podenv"
	"github.com/refvol/refvol/pkg/volume"
)

// errUnresolved is why a restored volume waits for its pod's spec.
var errUnresolved = errors.New("the pod's spec could not be read")

// Retries to read a pod's spec after a restart start at resolveMin and double up to
// resolveMax. What another try at once can't mend waits for a resync.
const (
	resolveMin = time.Second
	resolveMax = time.Minute
)

// resolution is what is known of the pod's spec that a restored volume needs. The lock of
// the contents guards it.
type resolution struct {
	// running says that a goroutine reads the spec.
	running bool
	// err is why the last try failed, and retryAt when the next one may be.
	err     error
	retryAt time.Time
	delay   time.Duration
}

// resolve returns a volume's spec with what the pod's own spec adds to it, and in words
// what of that a volume can't know. That never changes in the life of a pod, and it is
// not recorded, as it may hold passwords: so it is read by the publish, and once more
// after a restart.
func (p *Publisher) resolve(ctx context.Context, request *Request, spec *volume.Spec) (*volume.Spec, []string, error) {
	if !spec.HasPodEnv() {
		return spec, nil, nil
	}
	var leftOut []string
	var env func(string) (volume.Env, []string, error)
	resolved, err := spec.WithPodEnv(func(container, at string) (volume.Env, error) {
		if env == nil {
			var err error
			if env, err = p.opts.Pods.Env(ctx, request.Pod); err != nil {
				return volume.Env{}, podEnvFailure(at, err)
			}
		}
		set, out, err := env(container)
		if err != nil {
			return volume.Env{}, podEnvFailure(at, err)
		}
		leftOut = append(leftOut, out...)
		return set, nil
	})
	slices.Sort(leftOut)
	return resolved, slices.Compact(leftOut), err
}

// resolveLater has the pod's spec of a restored volume read, without the worker and the
// lock of the contents, which the caller holds: a slow API server must hold up neither the
// other volumes nor this one's unpublish. The volume is queued again after that.
func (p *Publisher) resolveLater(ctx context.Context, v *published) error {
	r := &v.contents.resolution
	switch {
	case r.running:
		return errPutOff
	case time.Now().Before(r.retryAt):
		return r.err
	}
	r.running = true
	p.resolvers.Go(func() {
		select {
		case p.resolving <- struct{}{}:
			defer func() { <-p.resolving }()
		case <-ctx.Done():
			return
		}
		spec, leftOut, err := p.resolve(ctx, &v.request, v.spec)
		v.contents.mu.Lock()
		defer v.contents.mu.Unlock()
		r.running = false
		if err != nil {
			p.resolveAgain(v, err)
		} else {
			v.contents.spec, v.contents.leftOut = spec, leftOut
		}
		p.queue.Add(v.request.VolumeID)
	})
	return errPutOff
}

// resolveAgain says when a failed read of the pod's spec is tried again. The caller holds
// the lock of the contents.
func (p *Publisher) resolveAgain(v *published, err error) {
	r := &v.contents.resolution
	r.err = fmt.Errorf("%w: %w", errUnresolved, err)
	if ReasonOf(err) != ReasonUnavailable {
		r.retryAt = time.Now().Add(p.opts.ResyncInterval)
		return
	}
	r.delay = min(max(2*r.delay, resolveMin), resolveMax)
	wait := r.delay/2 + rand.N(r.delay)
	r.retryAt = time.Now().Add(wait)
	p.queue.AddAfter(v.request.VolumeID, wait)
}

// podEnvFailure gives the failure to read a pod's environment its reason.
func podEnvFailure(at string, err error) error {
	reason := ReasonUnavailable
	switch {
	case errors.Is(err, podenv.ErrUnusable):
		reason = ReasonInvalid
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		reason = ReasonNotFound
	case apierrors.IsForbidden(err):
		reason = ReasonForbidden
	}
	return fail(reason, "%s: %w", at, err)
}

// skippedText says which variables are not in a volume's env files, "" for none.
func skippedText(skipped []payload.Skipped, leftOut []string) string {
	var texts []string
	for _, s := range skipped {
		if len(s.Unfit) > 0 {
			texts = append(texts, fmt.Sprintf("%s: skipped, for a %s file can't hold them: %s", s.Path, s.Format, strings.Join(s.Unfit, ", ")))
		}
		if len(s.Dependent) > 0 {
			texts = append(texts, fmt.Sprintf("%s: left out, for they refer to what a volume can't know: %s", s.Path, strings.Join(s.Dependent, ", ")))
		}
	}
	if len(leftOut) > 0 {
		texts = append(texts, "left out, for a volume can't know them: "+strings.Join(leftOut, ", "))
	}
	return strings.Join(texts, "; ")
}
