package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// pluginNamespace is where the accounts are.
const pluginNamespace = "refvol-system"

// componentAccount returns a kubeconfig of an account with the rights that the base has with
// a component. The account lasts as long as the test.
func componentAccount(t *testing.T, component string) (kubeconfig string) {
	t.Helper()
	rules, err := harness.Rules(t.Context(), component)
	if err != nil {
		t.Fatal(err)
	}
	return newAccount(t, uniqueName("plugin-"+component), rules)
}

// uniqueName returns a name of an account that no other test has, nor this one when it
// runs again.
func uniqueName(prefix string) string { return prefix + "-" + rand.String(8) }

// newAccount makes a service account with the rules, waits until they hold, and returns its
// kubeconfig.
func newAccount(t *testing.T, name string, rules []rbacv1.PolicyRule) (kubeconfig string) {
	t.Helper()
	t.Cleanup(func() { removeAccount(t, name) })
	kubeconfig = filepath.Join(shared.dir, name+".kubeconfig")
	if _, err := harness.MakeAccount(t.Context(), shared.ControlPlane, name, kubeconfig); err != nil {
		t.Fatal(err)
	}
	rbac := shared.Client().RbacV1()
	meta := metav1.ObjectMeta{Name: name}
	if _, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{account(pluginNamespace, name)},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}
	if _, err := rbac.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRights(t, kubeconfig, rules)
	return kubeconfig
}

// removeAccount undoes newAccount.
func removeAccount(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	rbac := shared.Client().RbacV1()
	if err := errors.Join(
		rbac.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}),
		rbac.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}),
		shared.Client().CoreV1().ServiceAccounts(pluginNamespace).Delete(ctx, name, metav1.DeleteOptions{}),
		os.Remove(filepath.Join(shared.dir, name+".kubeconfig")),
	); err != nil {
		t.Error(err)
	}
}

// awaitRights waits until the API server knows the account of a kubeconfig and allows it
// what the rules say: it hears of both by watches of its own.
func awaitRights(t *testing.T, kubeconfig string, rules []rbacv1.PolicyRule) {
	t.Helper()
	client := clientOf(t, kubeconfig, "")
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				asked := &authorizationv1.ResourceAttributes{Group: rule.APIGroups[0], Resource: resource, Verb: verb}
				review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: asked}}
				harness.Eventually(t, soon, func() error {
					answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
					if err == nil && !answer.Status.Allowed {
						err = fmt.Errorf("not allowed: %s of %s", verb, resource)
					}
					return err
				})
			}
		}
	}
}

// clientOf returns a client of a kubeconfig that impersonates a user, empty for nobody. Its connections end with the test.
func clientOf(t *testing.T, kubeconfig, user string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = user
	return harness.ClientFor(t, config)
}
