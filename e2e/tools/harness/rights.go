package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/refvol/refvol/e2e/tools/controlplane"
)

const (
	pluginNamespace = "refvol-system"
	pluginAccount   = "refvol-plugin"
	// tokenLifetime is longer than any run.
	tokenLifetime = 12 * time.Hour
)

// GrantPlugin makes the plugin's service account, gives it what deploy/base gives it and nothing else, so that a
// right that is missing there shows, and writes a kubeconfig file for it. It returns the token that the file carries.
// What is there already, from another run, stays.
func GrantPlugin(ctx context.Context, c *controlplane.ControlPlane, kubeconfig string) (token string, err error) {
	repo, err := Repository()
	if err != nil {
		return "", err
	}
	f, err := os.Open(filepath.Join(repo, "deploy", "base", "rbac.yaml"))
	if err != nil {
		return "", fmt.Errorf("read the plugin's rights: %w", err)
	}
	defer f.Close()
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	documents := yaml.NewYAMLOrJSONDecoder(f, 4096)
	if err := errors.Join(documents.Decode(&role), documents.Decode(&binding)); err != nil {
		return "", fmt.Errorf("decode %s as a ClusterRole and its binding: %w", f.Name(), err)
	}
	return grant(ctx, c, pluginAccount, kubeconfig, &role, &binding)
}

// GrantRules makes a service account with rules of its own in all namespaces, and a kubeconfig file for it.
func GrantRules(ctx context.Context, c *controlplane.ControlPlane, account, kubeconfig string, rules []rbacv1.PolicyRule) error {
	meta := metav1.ObjectMeta{Name: account}
	_, err := grant(ctx, c, account, kubeconfig, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: pluginNamespace, Name: account}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
	})
	return err
}

// grant makes a service account, a role and its binding.
func grant(ctx context.Context, c *controlplane.ControlPlane, account, kubeconfig string, role *rbacv1.ClusterRole, binding *rbacv1.ClusterRoleBinding) (token string, err error) {
	client := c.Client()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pluginNamespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); missing(err) {
		return "", fmt.Errorf("create the plugin's namespace: %w", err)
	}
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); missing(err) {
		return "", fmt.Errorf("create the plugin's role: %w", err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); missing(err) {
		return "", fmt.Errorf("bind the plugin's role: %w", err)
	}
	return MakeAccount(ctx, c, account, kubeconfig)
}

// missing says whether an object is not there, after this answer to its creation.
func missing(err error) bool { return err != nil && !apierrors.IsAlreadyExists(err) }

// MakeAccount makes a service account in the plugin's namespace, which must exist, and a kubeconfig file for it. It
// returns the token that the file carries.
func MakeAccount(ctx context.Context, c *controlplane.ControlPlane, name, kubeconfig string) (token string, err error) {
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Client().CoreV1().ServiceAccounts(pluginNamespace).Create(ctx, sa, metav1.CreateOptions{}); missing(err) {
		return "", fmt.Errorf("create service account %s: %w", name, err)
	}
	if token, err = c.ServiceAccountToken(ctx, pluginNamespace, name, tokenLifetime); err != nil {
		return "", err
	}
	return token, c.WriteKubeconfig(kubeconfig, token)
}
