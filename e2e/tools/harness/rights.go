package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

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

// Kustomization writes a kustomization into dir that puts components on the base of deploy/, as users do.
func Kustomization(dir string, components ...string) error {
	repo, err := Repository()
	if err != nil {
		return err
	}
	// Kustomize takes relative paths only, and resolves links first.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	deploy, err := filepath.Rel(dir, filepath.Join(repo, "deploy"))
	if err != nil {
		return err
	}
	var paths []string
	for _, name := range components {
		paths = append(paths, filepath.Join(deploy, "components", name))
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n", filepath.Join(deploy, "base"), strings.Join(paths, ", "))
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)
}

// Rules returns what the plugin's account may do with the base and components. The first call on a machine builds
// kubectl.
func Rules(ctx context.Context, components ...string) ([]rbacv1.PolicyRule, error) {
	kubectl, err := BuildKubectl(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "refvol-kustomize-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := Kustomization(dir, components...); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, kubectl, "kustomize", dir)
	cmd.Stderr = os.Stderr
	manifests, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("render the components %q: %w", components, err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		var role rbacv1.ClusterRole
		if err := documents.Decode(&role); err != nil {
			return nil, errors.Join(errors.New("the manifests have no ClusterRole"), err)
		}
		if role.Kind == "ClusterRole" {
			return role.Rules, nil
		}
	}
}

// asNodeAccount is the account of a plugin with --identity=node, and the name of its pod.
const asNodeAccount = "refvol-plugin-as-node"

// GrantAsNode makes a service account with what deploy/components/node-identity gives the plugin, a pod of it on
// NodeName, and a kubeconfig file with a token that is bound to the pod. It returns once the API server lets a plugin
// with that token read as the node. The first call on a machine builds kubectl.
func GrantAsNode(ctx context.Context, c *controlplane.ControlPlane, kubeconfig string) error {
	rules, err := Rules(ctx, "node-identity")
	if err != nil {
		return err
	}
	if err := GrantRules(ctx, c, asNodeAccount, kubeconfig, rules); err != nil {
		return err
	}
	pod := newPod(NodeName, pluginNamespace, asNodeAccount, uuid.NewUUID())
	pod.Spec.ServiceAccountName = asNodeAccount
	if err := c.PutPod(ctx, pod); err != nil {
		return err
	}
	token, err := c.PodToken(ctx, pod, tokenLifetime)
	if err != nil {
		return err
	}
	if err := c.WriteKubeconfig(kubeconfig, token); err != nil {
		return err
	}
	config := c.Config()
	config.BearerToken = token
	config.Impersonate.UserName = nodeUser
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return Poll(ctx, patience, 10*time.Millisecond, func() error {
		_, err := client.CoreV1().Pods(pluginNamespace).Get(ctx, asNodeAccount, metav1.GetOptions{})
		return err
	})
}

// nodeUser is the user of NodeName's kubelet, nodesGroup the group of all of them.
const nodeUser, nodesGroup = "system:node:" + NodeName, "system:nodes"

// AwaitPod waits until the API server's Node authorizer knows that a pod is on NodeName. It hears of pods in the
// order of their changes.
func AwaitPod(ctx context.Context, c *controlplane.ControlPlane, namespace, name string) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: nodeUser, Groups: []string{nodesGroup},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Name: name, Verb: "get", Version: "v1", Resource: "pods"},
	}}
	return Poll(ctx, patience, 10*time.Millisecond, func() error {
		answer, err := c.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("the API server does not let %s get pod %s/%s: %s", nodeUser, namespace, name, answer.Status.Reason)
		}
		return err
	})
}

// NativeConfigMap returns a volume of a pod that shows a ConfigMap.
func NativeConfigMap(name, configMap string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
	}}
}
