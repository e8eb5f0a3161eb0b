package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/podenv"
	"github.com/refvol/refvol/pkg/volume"
)

// resolve makes sure that a volume's spec has what the pod's own spec adds to it. That
// never changes in the life of a pod, and it is not recorded, as it may hold passwords:
// so it is read once by the publish, and once more after a restart. The caller holds the
// lock of the contents, or owns a volume that nobody else knows.
func (p *Publisher) resolve(ctx context.Context, v *published) error {
	if v.contents.spec != nil {
		return nil
	}
	var leftOut []string
	spec, err := v.spec.WithPodEnv(func(container, at string) (volume.Env, error) {
		env, out, err := p.opts.Pods.Env(ctx, v.request.Pod, container)
		leftOut = append(leftOut, out...)
		if err != nil {
			return env, podEnvFailure(at, err)
		}
		return env, nil
	})
	if err != nil {
		return err
	}
	v.contents.spec, v.contents.leftOut = spec, leftOut
	return nil
}

// podEnvFailure gives the failure to read a pod's environment its reason.
func podEnvFailure(at string, err error) error {
	reason := ReasonUnavailable
	switch {
	case errors.Is(err, podenv.ErrUnusable):
		reason = ReasonInvalid
	case apierrors.IsNotFound(err):
		reason = ReasonNotFound
	case apierrors.IsForbidden(err):
		reason = ReasonForbidden
	}
	return fail(reason, "%s: %w", at, err)
}

// tellSkipped tells the pod's author which variables are not in the volume's env files,
// when that changes. The caller holds the lock of the contents.
func (p *Publisher) tellSkipped(v *published, skipped []payload.Skipped) {
	var texts []string
	for _, s := range skipped {
		texts = append(texts, fmt.Sprintf("%s: skipped, for a %s file can't hold them: %s", s.Path, s.Format, strings.Join(s.Names, ", ")))
	}
	if len(v.contents.leftOut) > 0 {
		texts = append(texts, "left out, for a volume can't know them: "+strings.Join(v.contents.leftOut, ", "))
	}
	text := strings.Join(texts, "; ")
	if text != "" && text != v.contents.told {
		p.opts.Events.Warn(v.request.Pod, eventInvalidNames, text)
	}
	v.contents.told = text
}
