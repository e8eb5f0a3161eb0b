package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/volume"
)

// volume visits what one volume of a pod references. What a claim or its persistent
// volume references is not the pod's.
func (v visitor) volume(at *field.Path, source *corev1.VolumeSource) {
	if s := source.ConfigMap; s != nil {
		v.add(Reference{Kind: volume.ConfigMap, Name: s.Name, Keys: keys(s.Items), Optional: isTrue(s.Optional)}, at.Child("configMap", "name"))
	}
	if s := source.Secret; s != nil {
		v.add(Reference{Kind: volume.Secret, Name: s.SecretName, Keys: keys(s.Items), Optional: isTrue(s.Optional)}, at.Child("secret", "secretName"))
	}
	if source.Projected != nil {
		for i := range source.Projected.Sources {
			v.projection(at.Child("projected", "sources").Index(i), &source.Projected.Sources[i])
		}
	}
	v.credentials(at, source)
}

func (v visitor) projection(at *field.Path, source *corev1.VolumeProjection) {
	if s := source.ConfigMap; s != nil {
		v.add(Reference{Kind: volume.ConfigMap, Name: s.Name, Keys: keys(s.Items), Optional: isTrue(s.Optional)}, at.Child("configMap", "name"))
	}
	if s := source.Secret; s != nil {
		v.add(Reference{Kind: volume.Secret, Name: s.Name, Keys: keys(s.Items), Optional: isTrue(s.Optional)}, at.Child("secret", "name"))
	}
}

// credentials visits the Secrets that storage is reached with.
func (v visitor) credentials(at *field.Path, source *corev1.VolumeSource) {
	if s := source.AzureFile; s != nil {
		v.add(Reference{Kind: volume.Secret, Name: s.SecretName}, at.Child("azureFile", "secretName"))
	}
	if s := source.CephFS; s != nil {
		v.credential(at.Child("cephfs", "secretRef"), s.SecretRef)
	}
	if s := source.Cinder; s != nil {
		v.credential(at.Child("cinder", "secretRef"), s.SecretRef)
	}
	if s := source.FlexVolume; s != nil {
		v.credential(at.Child("flexVolume", "secretRef"), s.SecretRef)
	}
	if s := source.RBD; s != nil {
		v.credential(at.Child("rbd", "secretRef"), s.SecretRef)
	}
	if s := source.ScaleIO; s != nil {
		v.credential(at.Child("scaleIO", "secretRef"), s.SecretRef)
	}
	if s := source.ISCSI; s != nil {
		v.credential(at.Child("iscsi", "secretRef"), s.SecretRef)
	}
	if s := source.StorageOS; s != nil {
		v.credential(at.Child("storageos", "secretRef"), s.SecretRef)
	}
	if s := source.CSI; s != nil {
		v.credential(at.Child("csi", "nodePublishSecretRef"), s.NodePublishSecretRef)
	}
}

func (v visitor) credential(at *field.Path, ref *corev1.LocalObjectReference) {
	if ref != nil {
		v.add(Reference{Kind: volume.Secret, Name: ref.Name}, at.Child("name"))
	}
}

func keys(items []corev1.KeyToPath) []string {
	var names []string
	for _, item := range items {
		names = append(names, item.Key)
	}
	return names
}
