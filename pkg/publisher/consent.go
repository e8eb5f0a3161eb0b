package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// tokenTime is how long after a restart a volume may be without a token before that counts
// as a fault: the kubelet publishes again within one and a half minutes.
const tokenTime = 3 * time.Minute

// admit returns nil once the pod of a new volume, whose publish began at a time, may have all objects that it needs a right
// to. It asks for what is not known, and all answers are waited for, so that a refusal names all objects. A refusal is
// final, and has the same text whether the object exists or not: nothing was asked of it yet.
func (v *vol) admit(began time.Time) error {
	if v.admitted {
		return nil // it may wait for an object for long
	}
	if err := v.prove(began); err != nil {
		return err
	}
	refused, waiting := map[volume.Ref]bool{}, error(nil)
	var errs []error
	for _, use := range v.spec.consents {
		verdict, err := access.Refused, error(nil)
		if !v.isSwitchedOff(use.Ref) {
			verdict, err = v.p.access.Admit(v.specOf.Pod, use.Ref, began)
		}
		switch {
		case verdict == access.Refused:
			refused[use.Ref] = true
		case errors.Is(err, access.ErrPending):
			waiting = err
		case err != nil:
			errs = append(errs, err)
		}
	}
	switch {
	case waiting != nil:
		return waiting
	case len(refused) > 0:
		return v.refusal(refused)
	}
	err := v.unreviewed(errors.Join(errs...))
	v.admitted = err == nil
	return err
}

// unreviewed returns why a right is not known, nil for nil.
func (v *vol) unreviewed(err error) error {
	switch {
	case err == nil, errors.Is(err, access.ErrPending):
		return err
	case errors.Is(err, authz.ErrNoToken) && v.mounted && time.Since(v.since) < tokenTime:
		return pending(err)
	}
	return fmt.Errorf("%w: %w", errUnreviewed, err)
}

// prove sees to it that the pod is of the account which its request names, where objects are read with pods' tokens. What
// a request says of a pod is not enough where objects are shared by all pods of an account: without podInfoOnMount it is
// what the pod's author wrote, and without tokenRequests the token is. So a question is sent with that very token, and
// its answer has it used.
func (v *vol) prove(began time.Time) error {
	identity := v.p.opts.Identity
	if identity == nil || len(v.spec.consents) == 0 || v.proven {
		return nil
	}
	pod := v.specOf.Pod
	if v.token.Reveal() == "" {
		return v.unreviewed(fmt.Errorf("service account %s: %w", pod.Account(), authz.ErrNoToken))
	}
	if err := identity.Check(pod, v.token); err != nil {
		return &deniedError{err: err}
	}
	verdict, err := v.p.access.Prove(pod, v.spec.consents[0].Ref, began, v.token)
	if apierrors.IsUnauthorized(err) {
		err = fmt.Errorf("the API server does not accept the token of pod %s (it may have expired; the kubelet brings another one): %w", pod, err)
	}
	if verdict == access.Unknown {
		return v.unreviewed(err)
	}
	v.use(v.token)
	return nil
}

// offer takes the token that a republish brought. It can't fail: without a new one the volume goes on with the one before.
func (v *vol) offer(ctx context.Context, want *Request) {
	identity := v.p.opts.Identity
	if identity == nil || len(v.spec.consents) == 0 || want.Token.Reveal() == "" || want.Token.Same(v.token) {
		return
	}
	v.token = want.Token
	if !v.proven {
		return // what comes next proves it
	}
	if err := identity.Check(want.Pod, want.Token); err != nil {
		klog.FromContext(ctx).Error(err, "The token of a republish is not used")
		return
	}
	v.use(want.Token)
}

// use has a token used for requests of the pod's account. Whatever waited for one goes on.
func (v *vol) use(token volume.Token) {
	account := v.specOf.Pod.Account()
	v.p.opts.Identity.Put(v.specOf.Pod, v.id, token)
	v.proven = true
	v.p.opts.Objects.Renewed(account)
	v.p.access.Renewed(account)
}

// mayKeep returns whether the pod of a mounted volume may have an object, by answers of half a resync.
func (v *vol) mayKeep(ref volume.Ref) (access.Verdict, error) {
	if !v.spec.consent[ref] {
		return access.Allowed, nil
	}
	if v.isSwitchedOff(ref) {
		return access.Refused, nil
	}
	verdict, err := v.p.access.Keeps(v.specOf.Pod, ref, v.mounted)
	return verdict, v.unreviewed(err)
}

// isSwitchedOff says whether an object is of another namespace and these were switched off since the publish.
func (v *vol) isSwitchedOff(ref volume.Ref) bool {
	return !v.p.opts.CrossNamespace && ref.Namespace != v.specOf.Pod.Namespace
}

// refusal returns an error that names refused objects, nil if there is none.
func (v *vol) refusal(refused map[volume.Ref]bool) error {
	if len(refused) == 0 {
		return nil
	}
	needs := "get" // where reviews were switched off since the publish, nobody is asked
	if v.p.opts.Reviews != nil {
		needs = authz.Phrase(v.p.opts.Reviews.Verbs)
	}
	var texts []string
	for _, use := range v.spec.consents {
		if !refused[use.Ref] {
			continue
		}
		if len(texts) == fewNames {
			texts = append(texts, fmt.Sprintf("and %d more of the objects that it names", len(refused)-fewNames))
			break
		}
		if v.isSwitchedOff(use.Ref) {
			texts = append(texts, fmt.Sprintf("%s: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)", use.Field))
			continue
		}
		texts = append(texts, fmt.Sprintf("%s: Forbidden: service account %q of the pod may not %s %s; whoever owns namespace %q consents by a Role and a RoleBinding there",
			use.Field, v.specOf.Pod.ServiceAccount, needs, use.Ref, use.Ref.Namespace))
	}
	return &refusedError{strings.Join(texts, "; ")}
}

// readWhat has the objects read that the pod may have: of the others nothing is asked.
func (v *vol) readWhat(may []volume.Ref) {
	if slices.Equal(may, v.registered) {
		return
	}
	v.registered = may
	v.p.opts.Objects.RegisterPod(v.specOf.Pod, v.id, may)
	if !v.mounted {
		v.p.opts.Objects.Prioritize(v.specOf.Pod, may)
	}
}
