// Package authz answers whether a pod's service account may have an object of another
// namespace.
//
// It owns the question, a SubjectAccessReview, and how long an answer is good for. A
// right to get the object is the consent of its namespace's owner; there is no other.
// The package must not know what becomes of a refusal.
package authz

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/volume"
)

// ErrUndecided reports that no authorizer of the API server allowed a request, and that
// one of them failed: that is neither consent nor a refusal.
var ErrUndecided = errors.New("an authorizer of the API server failed")

// Account is a service account.
type Account struct{ Namespace, Name string }

// String returns namespace/name.
func (a Account) String() string { return a.Namespace + "/" + a.Name }

// AccountOf returns the service account that a pod runs as.
func AccountOf(pod volume.Pod) Account {
	return Account{Namespace: pod.Namespace, Name: pod.ServiceAccount}
}

// MayGet asks the API server, with one request, whether a service account may get an
// object, which need not exist. The error is that of the request, or wraps ErrUndecided.
func MayGet(ctx context.Context, client authorizationclient.SubjectAccessReviewInterface, account Account, ref volume.Ref) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		// What the account's own token would say.
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + account.Namespace, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: ref.Namespace, Verb: "get", Version: "v1", Resource: resource(ref.Kind), Name: ref.Name,
		},
	}}
	review, err := client.Create(clientlog.Context(ctx), review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask whether service account %s may get %s: %w", account, ref, err)
	}
	status := &review.Status
	if !status.Allowed && !status.Denied && status.EvaluationError != "" {
		return false, fmt.Errorf("ask whether service account %s may get %s: %w: %s", account, ref, ErrUndecided, status.EvaluationError)
	}
	return status.Allowed && !status.Denied, nil
}

func resource(kind volume.Kind) string {
	if kind == volume.Secret {
		return "secrets"
	}
	return "configmaps"
}
