package publisher

import (
	"context"
	"errors"
	"sync"

	"github.com/refvol/refvol/pkg/volume"
)

// questionsAtOnce is how many of a volume's objects are asked about at once.
const questionsAtOnce = 8

// reviewer asks whether a pod may have an object.
type reviewer func(ctx context.Context, pod volume.Pod, ref volume.Ref) (bool, error)

// answers is the outcome of a review.
type answers struct {
	refused map[volume.Ref]bool
	unknown map[volume.Ref]bool
	// err joins why the unknown ones are.
	err error
}

// review asks for each object that the pod needs a right to whether it may have it, some at a
// time: a publish doesn't wait for ever, and answers don't keep.
func (p *Publisher) review(ctx context.Context, v *published, ask reviewer) answers {
	allowed, errs := make([]bool, len(v.reviewed)), make([]error, len(v.reviewed))
	var asking sync.WaitGroup
	slots := make(chan struct{}, questionsAtOnce)
	for i, use := range v.reviewed {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			allowed[i], errs[i] = p.reviewOne(ctx, v, use.Ref, ask)
		})
	}
	asking.Wait()
	got := answers{refused: map[volume.Ref]bool{}, unknown: map[volume.Ref]bool{}, err: errors.Join(errs...)}
	for i, use := range v.reviewed {
		switch {
		case errs[i] != nil:
			got.unknown[use.Ref] = true
		case !allowed[i]:
			got.refused[use.Ref] = true
		}
	}
	return got
}

// reviewOne is review for one object. A panic is an error: here nobody else would catch it.
func (p *Publisher) reviewOne(ctx context.Context, v *published, ref volume.Ref, ask reviewer) (allowed bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			logPanic(ctx, v.request.VolumeID, cause)
			allowed, err = false, errPanicked
		}
	}()
	// Other namespaces may have been switched off since the publish.
	if !p.opts.CrossNamespace && ref.Namespace != v.request.Pod.Namespace {
		return false, nil
	}
	return ask(ctx, v.request.Pod, ref)
}
