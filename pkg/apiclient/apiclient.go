// Package apiclient provides clients of the API server for the few kinds of objects that the plugin uses.
//
// It owns the scheme and the requests. client-go's own clientset would link the types of every API group into the binary. The package must
// not know who sends a request, why, or with whose rights.
package apiclient

import (
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Client sends requests for the API groups in use. It sends each request once: a Retry-After is in the error, and the transport or the
// caller obeys it. It is safe for concurrent use.
type Client struct {
	core, authentication, authorization *rest.RESTClient
	scheme                              *runtime.Scheme
	codecs                              serializer.CodecFactory
	parameters                          runtime.ParameterCodec
}

// New returns a Client that sends requests with httpClient, as config says. It fails if config is not valid.
func New(config *rest.Config, httpClient *http.Client) (*Client, error) {
	scheme := runtime.NewScheme()
	types := runtime.NewSchemeBuilder(corev1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme)
	if err := types.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register the types of the API: %w", err)
	}
	c := &Client{scheme: scheme, codecs: serializer.NewCodecFactory(scheme), parameters: runtime.NewParameterCodec(scheme)}
	for _, group := range []struct {
		version schema.GroupVersion
		path    string
		client  **rest.RESTClient
	}{
		{corev1.SchemeGroupVersion, "/api", &c.core},
		{authenticationv1.SchemeGroupVersion, "/apis", &c.authentication},
		{authorizationv1.SchemeGroupVersion, "/apis", &c.authorization},
	} {
		of := rest.CopyConfig(config)
		of.GroupVersion, of.APIPath = &group.version, group.path
		of.NegotiatedSerializer = c.codecs.WithoutConversion()
		client, err := rest.RESTClientForConfigAndClient(of, httpClient)
		if err != nil {
			return nil, fmt.Errorf("make a client of %s: %w", group.version, err)
		}
		*group.client = client
	}
	return c, nil
}

// Core returns the client of core/v1.
func (c *Client) Core() *rest.RESTClient { return c.core }

// Scheme returns the types of the API groups in use. The caller must not change it.
func (c *Client) Scheme() *runtime.Scheme { return c.scheme }

// ParameterCodec returns the encoder for the options of requests.
func (c *Client) ParameterCodec() runtime.ParameterCodec { return c.parameters }

// ConfigMaps returns the ConfigMaps of a namespace.
func (c *Client) ConfigMaps(namespace string) Resource[corev1.ConfigMap, *corev1.ConfigMap] {
	return Resource[corev1.ConfigMap, *corev1.ConfigMap]{c.core, c.parameters, "configmaps", namespace}
}

// Secrets returns the Secrets of a namespace.
func (c *Client) Secrets(namespace string) Resource[corev1.Secret, *corev1.Secret] {
	return Resource[corev1.Secret, *corev1.Secret]{c.core, c.parameters, "secrets", namespace}
}

// Pods returns the Pods of a namespace.
func (c *Client) Pods(namespace string) Resource[corev1.Pod, *corev1.Pod] {
	return Resource[corev1.Pod, *corev1.Pod]{c.core, c.parameters, "pods", namespace}
}

// Events returns the Events of a namespace.
func (c *Client) Events(namespace string) Resource[corev1.Event, *corev1.Event] {
	return Resource[corev1.Event, *corev1.Event]{c.core, c.parameters, "events", namespace}
}

// Nodes returns the Nodes.
func (c *Client) Nodes() Resource[corev1.Node, *corev1.Node] {
	return Resource[corev1.Node, *corev1.Node]{c.core, c.parameters, "nodes", ""}
}

// SelfSubjectReviews returns the reviews that say who sends a request.
func (c *Client) SelfSubjectReviews() Resource[authenticationv1.SelfSubjectReview, *authenticationv1.SelfSubjectReview] {
	return Resource[authenticationv1.SelfSubjectReview, *authenticationv1.SelfSubjectReview]{c.authentication, c.parameters, "selfsubjectreviews", ""}
}

// SubjectAccessReviews returns the reviews of an account's rights.
func (c *Client) SubjectAccessReviews() Resource[authorizationv1.SubjectAccessReview, *authorizationv1.SubjectAccessReview] {
	return Resource[authorizationv1.SubjectAccessReview, *authorizationv1.SubjectAccessReview]{c.authorization, c.parameters, "subjectaccessreviews", ""}
}

// SelfSubjectAccessReviews returns the reviews of the sender's own rights.
func (c *Client) SelfSubjectAccessReviews() Resource[authorizationv1.SelfSubjectAccessReview, *authorizationv1.SelfSubjectAccessReview] {
	return Resource[authorizationv1.SelfSubjectAccessReview, *authorizationv1.SelfSubjectAccessReview]{c.authorization, c.parameters, "selfsubjectaccessreviews", ""}
}
