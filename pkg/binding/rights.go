package binding

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

// tokenTime is how long after a restart a volume may lack a token before that counts as a fault. The kubelet publishes again within one and
// a half minutes.
const tokenTime = 3 * time.Minute

// rights are a pod's rights to the objects of a bound volume, and the pod's token.
type rights struct {
	node *Node
	Place
	request *Request
	spec    *Spec
	// isAdmitted means that the pod had all its rights when its publish asked.
	isAdmitted bool
	// token is the last one that a request brought. isProven means that the pod is proven to use the account that it claims.
	token    volume.Token
	isProven bool
}

// admit returns nil when the pod of a new volume may read all objects that need a right. began is when its publish began. admit asks the
// missing questions and waits for all answers, so that a refusal names all refused objects. A refusal is final. Its text is the same
// whether or not the object exists, because the object has not been requested yet.
func (r *rights) admit(began time.Time) failure.List {
	if r.isAdmitted {
		return nil // the publish may wait for an object for a long time
	}
	if f := r.prove(began, false); f != nil {
		return failure.List{f}
	}
	refused := map[volume.Ref]bool{}
	var waits *failure.Failure
	var unreviewed failure.List
	for _, use := range r.spec.consents {
		verdict, err := access.Refused, error(nil)
		if !r.isSwitchedOff(use.Ref) {
			verdict, err = r.node.access.Admit(r.request.Pod, use.Ref, began)
		}
		switch {
		case verdict == access.Refused:
			refused[use.Ref] = true
		case errors.Is(err, access.ErrPending):
			waits = failure.Waiting(err)
		case err != nil:
			unreviewed = append(unreviewed, r.unreviewed(err, false))
		}
	}
	switch {
	case waits != nil:
		return failure.List{waits}
	case len(refused) > 0:
		return failure.List{r.refusal(refused)}
	}
	r.isAdmitted = len(unreviewed) == 0
	return unreviewed
}

// unreviewed returns why a right is not known, or nil if err is nil.
func (r *rights) unreviewed(err error, isMounted bool) *failure.Failure {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, access.ErrPending), errors.Is(err, authz.ErrNoToken) && isMounted && time.Since(r.Since) < tokenTime:
		return failure.Waiting(err)
	}
	return failure.Outdated(failure.ReasonUnavailable, fmt.Errorf("access could not be reviewed: %w", err))
}

// prove checks that the pod uses the account that its request names, if objects are read with pods' tokens. The request alone is no proof,
// and all pods of an account share the objects. Without podInfoOnMount the pod's author wrote what the request says, and without
// tokenRequests the author also wrote the token. So a question is sent with this token. The token is used after it was answered.
func (r *rights) prove(began time.Time, isMounted bool) *failure.Failure {
	identity := r.node.opts.Identity
	if identity == nil || len(r.spec.consents) == 0 || r.isProven {
		return nil
	}
	pod, token := r.request.Pod, r.token
	if token.Reveal() == "" {
		return r.unreviewed(fmt.Errorf("service account %s: %w", pod.Account(), authz.ErrNoToken), isMounted)
	}
	if err := identity.Check(pod, token); err != nil {
		return failure.Forbidden(err, false)
	}
	verdict, err := r.node.access.Prove(pod, r.spec.consents[0].Ref, began, token)
	if apierrors.IsUnauthorized(err) {
		err = fmt.Errorf("the API server does not accept the token of pod %s (it may have expired; the kubelet will send a new one): %w", pod, err)
	}
	if verdict == access.Unknown {
		return r.unreviewed(err, isMounted)
	}
	r.use(token)
	return nil
}

// offer takes the token of a republish. It cannot fail: without a new token the volume continues with the old one.
func (r *rights) offer(ctx context.Context, request *Request) {
	r.request = request
	identity := r.node.opts.Identity
	if identity == nil || len(r.spec.consents) == 0 || request.Token.Reveal() == "" || request.Token.Same(r.token) {
		return
	}
	r.token = request.Token
	if !r.isProven {
		return // prove checks it
	}
	if err := identity.Check(request.Pod, request.Token); err != nil {
		klog.FromContext(ctx).Error(err, "The token of a republish is not used")
		return
	}
	r.use(request.Token)
}

// use makes a token usable for requests of the pod's account. Requests that waited for a token continue.
func (r *rights) use(token volume.Token) {
	account := r.request.Pod.Account()
	r.node.opts.Identity.Put(r.request.Pod, r.ID, token)
	r.isProven = true
	r.node.opts.Objects.OnNewCredential(account)
	r.node.access.OnNewCredential(account)
}

// mayKeep returns whether the pod of a mounted volume may read an object. Answers up to half a resync old count. Unknown and Suspected come
// with the reason.
func (r *rights) mayKeep(ref volume.Ref, isMounted bool) (access.Verdict, *failure.Failure) {
	if !r.spec.consent[ref] {
		return access.Allowed, nil
	}
	if r.isSwitchedOff(ref) {
		return access.Refused, nil
	}
	verdict, err := r.node.access.Recheck(r.request.Pod, ref, isMounted)
	return verdict, r.unreviewed(err, isMounted)
}

// isSwitchedOff reports whether an object is in another namespace and such objects were disabled after the publish.
func (r *rights) isSwitchedOff(ref volume.Ref) bool {
	return !r.node.opts.CrossNamespace && ref.Namespace != r.request.Pod.Namespace
}

// refusal returns a failure that names the refused objects, or nil if there are none. Its text does not reveal whether they exist. An object
// that is not switched off was refused by a review, so there are Reviews.
func (r *rights) refusal(refused map[volume.Ref]bool) *failure.Failure {
	if len(refused) == 0 {
		return nil
	}
	var texts []string
	for _, use := range r.spec.consents {
		if !refused[use.Ref] {
			continue
		}
		if len(texts) == failure.MaxNames {
			texts = append(texts, fmt.Sprintf("and %d more of the objects that it names", len(refused)-failure.MaxNames))
			break
		}
		if r.isSwitchedOff(use.Ref) {
			texts = append(texts, fmt.Sprintf("%s: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)", use.Field))
			continue
		}
		texts = append(texts, fmt.Sprintf("%s: Forbidden: service account %q of the pod may not %s %s; the owner of namespace %q can allow it with a Role and a RoleBinding there",
			use.Field, r.request.Pod.ServiceAccount, authz.Phrase(r.node.opts.Reviews.Verbs), use.Ref, use.Ref.Namespace))
	}
	f := failure.Forbidden(errors.New(strings.Join(texts, "; ")), false)
	f.Key = f.Error()
	return f
}
