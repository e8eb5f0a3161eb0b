package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations of an index entry from which the importers take the image's name:
// the first is containerd's, the second the image specification's.
const (
	annotationImageName = "io.containerd.image.name"
	annotationRefName   = "org.opencontainers.image.ref.name"
)

// writeArchive writes image under the name reference to a tar archive. A file of
// that name is replaced in one step.
func writeArchive(output string, image v1.Image, reference string) error {
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(output), "."+filepath.Base(output)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails after the rename
	defer file.Close()           // fails after the Close below
	if err := writeImage(file, image, reference); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return os.Rename(file.Name(), output)
}

func writeImage(w io.Writer, image v1.Image, reference string) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	index, err := indexOf(image, reference)
	if err != nil {
		return err
	}
	docker, err := dockerManifestOf(image, reference)
	if err != nil {
		return err
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}

	writer := tar.NewWriter(w)
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", index},
		{"manifest.json", docker},
		{blobPath(digest), manifest},
	} {
		if err := writeFile(writer, file.name, file.content, 0o644); err != nil {
			return err
		}
	}
	for _, layer := range append([]v1.Layer{config}, layers...) {
		if err := writeBlob(writer, layer); err != nil {
			return err
		}
	}
	return writer.Close()
}

// indexOf returns index.json of the image layout.
func indexOf(image v1.Image, reference string) ([]byte, error) {
	descriptor, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return nil, err
	}
	// An artifact type marks what is not an image to run.
	descriptor.ArtifactType = ""
	descriptor.Platform = config.Platform()
	descriptor.Annotations = map[string]string{annotationImageName: reference, annotationRefName: tag.TagStr()}
	return json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests:     []v1.Descriptor{*descriptor},
	})
}

// dockerManifestOf returns manifest.json, which engines that know no image layout
// read; it names the same blobs.
func dockerManifestOf(image v1.Image, reference string) ([]byte, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	entry := tarball.Descriptor{Config: blobPath(manifest.Config.Digest), RepoTags: []string{reference}}
	for _, layer := range manifest.Layers {
		entry.Layers = append(entry.Layers, blobPath(layer.Digest))
	}
	return json.Marshal(tarball.Manifest{entry})
}

func writeBlob(writer *tar.Writer, layer v1.Layer) error {
	digest, err := layer.Digest()
	if err != nil {
		return err
	}
	stream, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer stream.Close()
	content, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	return writeFile(writer, blobPath(digest), content, 0o644)
}

func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }
