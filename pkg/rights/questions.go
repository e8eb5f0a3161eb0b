package rights

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// SelfSubjectAccessReviews asks for the sender's own rights. A client-go client is one.
type SelfSubjectAccessReviews interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// Names returns the names of rights, such as "get of pods".
func Names(of []authorizationv1.ResourceAttributes) []string {
	names := make([]string, 0, len(of))
	for i := range of {
		names = append(names, of[i].Verb+" of "+of[i].Resource)
	}
	return names
}

// Missing asks for each of the rights, and returns the names of those that the sender lacks. Its errors are
// marked by NoAnswer.
func Missing(ctx context.Context, reviews SelfSubjectAccessReviews, needs []authorizationv1.ResourceAttributes) ([]string, error) {
	var missing []string
	for i := range needs {
		review, err := reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &needs[i]},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, NoAnswer(fmt.Errorf("ask whether the plugin may %s %s: %w", needs[i].Verb, needs[i].Resource, err))
		}
		if !review.Status.Allowed {
			missing = append(missing, Names(needs[i:i+1])...)
		}
	}
	return missing, nil
}

// OfObjects returns the rights to read ConfigMaps and Secrets of all namespaces by verbs, each of
// which prefix starts.
func OfObjects(prefix string, verbs []string) []authorizationv1.ResourceAttributes {
	var all []authorizationv1.ResourceAttributes
	for _, kind := range volume.Kinds() {
		for _, verb := range verbs {
			all = append(all, authorizationv1.ResourceAttributes{Verb: prefix + verb, Resource: kind.Resource()})
		}
	}
	return all
}

// OfEvents returns the rights to write events in all namespaces.
func OfEvents() []authorizationv1.ResourceAttributes {
	return []authorizationv1.ResourceAttributes{{Verb: "create", Resource: "events"}, {Verb: "patch", Resource: "events"}}
}

// NewOfAccount returns a Checker of whether the plugin's own account has the rights that --identity=identity
// needs.
func NewOfAccount(identity string, reviews SelfSubjectAccessReviews, needs []authorizationv1.ResourceAttributes, refusals *Refusals) (*Checker, error) {
	return New(Options{As: "itself", Needs: Names(needs), Refusals: refusals, Ask: func(ctx context.Context) ([]string, error) {
		missing, err := Missing(ctx, reviews, needs)
		if err == nil && len(missing) > 0 {
			err = fmt.Errorf("the plugin's account lacks rights in all namespaces that --identity=%s needs: %s: grant them, or choose another identity",
				identity, strings.Join(missing, ", "))
		}
		return missing, err
	}})
}
