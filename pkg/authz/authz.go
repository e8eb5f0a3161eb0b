// Package authz answers who may read what: whether a service account has a right to an object, by access reviews, and with whose token the
// API server is asked.
//
// It sends questions and remembers no answers. It owns the tokens of the pods that are published on this node. A right to an object in
// another namespace is the consent of that namespace's owner, and there is no other consent. The package must not know what an answer is
// used for, or what is read with a token.
package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/volume"
)

// ErrUndecided says that no authorizer of the API server allowed a request and one of them failed. That is neither consent nor a refusal.
var ErrUndecided = errors.New("an authorizer of the API server failed")

// Reviews sends reviews of one kind: SubjectAccessReviews or SelfSubjectAccessReviews. A client-go client implements it.
type Reviews[T any] interface {
	Create(ctx context.Context, review T, opts metav1.CreateOptions) (T, error)
}

// Ask asks the API server whether a service account has the right to a verb on an object. The object need not exist. An error says nothing
// about the right. If questions carry tokens, this one carries token, or any token of the account if token is zero. It is safe for
// concurrent use.
type Ask func(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string, token volume.Token) (bool, error)

// AskAbout returns an Ask that sends SubjectAccessReviews with the rights of client.
func AskAbout(client Reviews[*authorizationv1.SubjectAccessReview]) Ask {
	return func(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string, _ volume.Token) (bool, error) {
		review, err := client.Create(clientlog.Context(ctx), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               userOf(account),
				Groups:             groupsOf(account),
				ResourceAttributes: attributes(ref, verb),
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, whileAsking(account, ref, verb, err)
		}
		return decision(&review.Status, account, ref, verb)
	}
}

// AskWith returns an Ask that sends SelfSubjectAccessReviews with one of the account's own tokens. The transport of client must be that of
// Tokens.Wrap.
func AskWith(client Reviews[*authorizationv1.SelfSubjectAccessReview], tokens *Tokens) Ask {
	return func(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string, token volume.Token) (bool, error) {
		ctx = clientlog.Context(ctx)
		if token.Reveal() != "" {
			ctx = withToken(ctx, account, token)
		} else if err := tokens.Ready(account); err != nil {
			return false, whileAsking(account, ref, verb, err)
		} else {
			ctx = As(ctx, account)
		}
		review, err := client.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes(ref, verb)},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, whileAsking(account, ref, verb, err)
		}
		return decision(&review.Status, account, ref, verb)
	}
}

// decision returns the answer of a review. A refusal that comes with an error does not count, even if it is a denial: the API server
// reports the error of the authorizer that decided, and an authorizer that fails may be configured to deny.
func decision(status *authorizationv1.SubjectAccessReviewStatus, account volume.ServiceAccount, ref volume.Ref, verb string) (bool, error) {
	if !status.Allowed && status.EvaluationError != "" {
		return false, whileAsking(account, ref, verb, fmt.Errorf("%w: %s", ErrUndecided, status.EvaluationError))
	}
	return status.Allowed && !status.Denied, nil
}

func whileAsking(account volume.ServiceAccount, ref volume.Ref, verb string, err error) error {
	return fmt.Errorf("ask whether service account %s may %s %s: %w", account, verb, ref, err)
}

// Phrase joins verbs for a text: "get", or "get, list and watch". There must be at least one.
func Phrase(verbs []string) string {
	if len(verbs) == 1 {
		return verbs[0]
	}
	last := len(verbs) - 1
	return strings.Join(verbs[:last], ", ") + " and " + verbs[last]
}

// userOf returns the user of the account's own token, and groupsOf returns its groups.
func userOf(account volume.ServiceAccount) string {
	return "system:serviceaccount:" + account.Namespace + ":" + account.Name
}

func groupsOf(account volume.ServiceAccount) []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + account.Namespace, "system:authenticated"}
}

func attributes(ref volume.Ref, verb string) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{
		Namespace: ref.Namespace, Verb: verb, Version: "v1", Resource: ref.Kind.Resource(), Name: ref.Name,
	}
}
