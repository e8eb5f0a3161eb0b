package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/volume"
)

// ErrNotThePods reports that a token is not the pod's.
var ErrNotThePods = errors.New("the token is not the pod's own")

// podUIDKey is where the API server says which pod a token is bound to.
const podUIDKey = "authentication.kubernetes.io/pod-uid"

// Authenticator keeps the tokens of pods, and asks the API server whose a token is. It is safe
// for concurrent use.
type Authenticator struct {
	*Tokens
	client Reviews[*authenticationv1.SelfSubjectReview]
}

// NewAuthenticator returns an Authenticator. The transport of client must be that of
// Tokens.Wrap.
func NewAuthenticator(tokens *Tokens, client Reviews[*authenticationv1.SelfSubjectReview]) *Authenticator {
	return &Authenticator{Tokens: tokens, client: client}
}

// Prove asks the API server, with one request, whose a token is. It returns nil if the token
// is of the pod's service account and not bound to another pod. Objects are read once for all
// pods of an account, so a request's claim about its pod must be verified. The error wraps
// ErrNotThePods, or is that of the request and says nothing about the token.
func (a *Authenticator) Prove(ctx context.Context, pod volume.Pod, token volume.Token) error {
	ctx, cancel := context.WithTimeout(withToken(clientlog.Context(ctx), pod.Account(), token), requestTimeout)
	defer cancel()
	review, err := a.client.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("ask whose the token of pod %s is: the API server does not accept it (it may have expired; the kubelet brings another one): %w", pod, err)
	case err != nil:
		return fmt.Errorf("ask whose the token of pod %s is: %w", pod, err)
	}
	user := review.Status.UserInfo
	if user.Username != userOf(pod.Account()) {
		return fmt.Errorf("%w: pod %s runs as service account %s, the token is that of %q", ErrNotThePods, pod, pod.Account(), user.Username)
	}
	if uids := user.Extra[podUIDKey]; len(uids) > 0 && !slices.Contains(uids, string(pod.UID)) {
		return fmt.Errorf("%w: it is bound to another pod than %s with the UID %s", ErrNotThePods, pod, pod.UID)
	}
	return nil
}
